"""Charts as SVG in a page. Knows nothing about runs."""

"""Charts as SVG in a page. This package does not depend on runs."""

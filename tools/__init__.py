"""Generators of this repository's pages and exports. They are not in the wheel."""

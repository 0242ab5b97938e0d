"""Grids of runs: read, planned, run in parallel, tabulated."""

"""Sweeps: reading, planning, running (in parallel) and tabulating grids of runs."""

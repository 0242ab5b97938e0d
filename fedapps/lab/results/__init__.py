"""Reports, comparisons, tables and plots of runs."""

"""The laboratory: reports, comparisons, charts, sweeps, contests, and Python's tables
of them. The runner never imports it.
"""

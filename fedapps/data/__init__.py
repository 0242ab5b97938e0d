"""Data sources, and their partition among clients."""

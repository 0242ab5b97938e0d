"""Data, model, objective and measures together, by name."""

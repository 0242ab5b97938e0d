"""Synthetic samples: energies that refine them, and the distance between two sets."""

"""Synthetic samples: energies that refine them, and the Fréchet distance between two
sets.
"""

"""Mixtures of two models, and the loss around a model."""

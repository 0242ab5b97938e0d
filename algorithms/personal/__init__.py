"""Mixing of two models, and directions through the loss landscape around a model."""

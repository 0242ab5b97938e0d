"""Mixing of two models."""

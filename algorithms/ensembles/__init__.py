"""Ensembles of frozen predictors: losses, gradients, optimal mixture weights."""

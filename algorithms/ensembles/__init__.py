"""Ensembles of frozen predictors: losses, gradients, the best mixture."""

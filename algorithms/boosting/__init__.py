"""Functional gradient boosting: weak learners, additive models, distillation into one
network.
"""

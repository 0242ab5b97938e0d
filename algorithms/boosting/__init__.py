"""Functional gradient boosting: weak learners, their sums, distillation into one network."""

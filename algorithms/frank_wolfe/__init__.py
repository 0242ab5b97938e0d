"""Federated Frank-Wolfe: domains and their linear minimisation oracles, atoms,
objectives, steps.
"""

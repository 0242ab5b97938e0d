"""Federated Frank-Wolfe: domains and their oracles, atoms, objectives, steps."""

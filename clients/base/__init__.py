"""Foundations of all clients: the adapter to Flower, persistent state, data, local
training, evaluation.
"""

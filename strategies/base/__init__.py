"""Shared parts of all strategies: the round loop, the client grid, reply validation,
capabilities.
"""

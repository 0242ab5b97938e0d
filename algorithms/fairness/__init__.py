"""Weights of clients: online portfolios and the weight rules that they are compared with."""

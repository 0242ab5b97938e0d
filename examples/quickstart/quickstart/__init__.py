"""A torch app of Flower's message API."""

"""A Flower app outside fedapps that uses it."""

"""A Flower app that is no part of fedapps and uses it."""

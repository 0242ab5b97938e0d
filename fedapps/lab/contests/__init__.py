"""The contest of methods on one federation: rates, race and final, and its verdict."""

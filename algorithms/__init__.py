"""The mathematics of the methods: pure functions and small state machines. No Flower,
no files, no global state.
"""

PROJECT = "fedapps"

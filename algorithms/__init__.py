"""The mathematics of the methods: pure functions and small state machines. No Flower,
no files, no global state.
"""

if __name__ != "fedapps.algorithms":  # a checkout's folder itself: every class would exist twice
    raise ImportError("import fedapps.algorithms, not algorithms")

"""Building blocks shared by the methods: checks, seeds, averaging, metrics, mirror
descent.
"""

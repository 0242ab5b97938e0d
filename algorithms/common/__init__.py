"""Building blocks shared by the methods: options, seeds, averaging, metrics, mirror
descent.
"""

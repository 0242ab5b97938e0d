"""Building blocks shared by the methods: checks, seeds, wire format, averaging,
metrics, mirror descent.
"""

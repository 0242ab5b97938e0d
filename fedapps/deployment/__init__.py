"""A SuperLink and SuperNodes as real processes on this machine, with certificates and
keys.
"""

"""A SuperLink and SuperNodes as real processes of this machine, with certificates and
keys.
"""

"""The contract between the two halves of a method: what a strategy sends its clients,
declared once, and the wire format of arrays.
"""

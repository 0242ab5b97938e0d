"""The contract between the two halves of a method: what a strategy sends its clients,
declared once per family, and the wire format of arrays.
"""

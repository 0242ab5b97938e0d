"""Client weights for fair aggregation: online portfolios and the weight rules they are
compared with.
"""

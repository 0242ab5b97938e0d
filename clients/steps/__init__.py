"""Local steps. Read ``plain`` first: the loop that everything here equals, and its nine
words.
"""

"""Base classes shared by the strategies of one family."""

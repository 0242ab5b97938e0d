"""Exams for any method: yours, ours or another project's. Use ``from fedapps.testing
import exams``.
"""

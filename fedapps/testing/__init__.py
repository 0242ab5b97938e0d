"""Exams for a method of your own, ours or another project's: ``from fedapps.testing
import exams``.
"""

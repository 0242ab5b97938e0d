"""Engines that run the app: inline in this process, in Flower's Ray simulation, or on
the SuperNodes of a deployment.
"""

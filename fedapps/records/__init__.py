"""Writes and reads the files of a run."""

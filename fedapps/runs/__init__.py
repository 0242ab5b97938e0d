"""One run: building its parts from settings, and executing it."""

"""One run: from settings to its parts, and carrying it out."""

"""Where samples come from and how they are dealt to clients."""

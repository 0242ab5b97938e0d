"""Settings: their keys, defaults and checks, and their reference."""

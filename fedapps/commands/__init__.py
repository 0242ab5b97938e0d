"""The commands of `fedapps`, one module per command: its options and its function."""

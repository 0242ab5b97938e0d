"""`python -m fedapps` is the command `fedapps`."""

from fedapps.cli import entry

entry()

"""Entry point of `python -m fedapps`, which does the same as the command `fedapps`."""

from fedapps.commands.parser import entry

entry()

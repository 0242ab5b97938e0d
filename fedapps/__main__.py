"""Entry point of `python -m fedapps`, which is the same as the command `fedapps`."""

from fedapps.commands.parser import entry

entry()

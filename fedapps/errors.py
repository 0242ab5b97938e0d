"""Errors that end a command, invalid input (exit status 2) and a failed run (exit
status 1), and exit statuses.
"""

#: Exit statuses other than 0 and 1: bad settings or input; stopped by Ctrl-C or
#: SIGTERM.
USAGE_ERROR, INTERRUPTED = 2, 130


class UserError(Exception):
    """Bad settings or input. The message is one line: what is wrong, where, and how to
    fix it.
    """


class RunFailed(Exception):
    """The run started but did not complete."""


def reason(error: BaseException, most: int = 300) -> str:
    """Return the message of an error in one line, or its type if it has none."""
    return (" ".join(str(error).split()) or type(error).__name__)[:most]

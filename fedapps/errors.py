"""Errors that end a command, and exit statuses: 2 for invalid input, 1 for a failed
run.
"""

#: Exit statuses other than 0 and 1: bad settings or input; stopped by Ctrl-C or
#: SIGTERM.
USAGE_ERROR, INTERRUPTED = 2, 130


class UserError(Exception):
    """Bad settings or input. The message is one line that says what is wrong, where,
    and how to fix it.
    """


class RunFailed(Exception):
    """The run started but did not complete."""


def reason(error: BaseException, most: int = 300) -> str:
    """Return the message of an error in one line, or its type if it has none."""
    return (" ".join(str(error).split()) or type(error).__name__)[:most]

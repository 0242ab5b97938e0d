"""The two ways a command ends badly: the user can mend it (exit 2), or the run itself failed (exit 1); and the exit statuses."""

#: Exit statuses beside 0 and 1: bad settings or input; stopped by Ctrl-C or SIGTERM.
USAGE_ERROR, INTERRUPTED = 2, 130


class UserError(Exception):
    """Bad settings or input. The message is one line: what, where, how to mend it."""


class RunFailed(Exception):
    """The run started and did not complete."""

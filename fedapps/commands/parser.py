"""The command `fedapps`. Each of its commands is a module of this package, or of the
laboratory's, with ``add_options(parser)`` and ``execute(arguments)``, which returns the
exit status. Only the module of the chosen command is imported.

Exit status: 0 success; 1 the run failed; 2 bad settings or input; 130 interrupted.
"""

import argparse
import errno
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from fedapps.errors import (
    INTERRUPTED,
    USAGE_ERROR,
    RunFailed,
    UserError,
    check_system,
    homeless,
    what_to_install,
)
from fedapps.notes import respect_no_color
from fedapps.surroundings import settle

COMMANDS = {
    "run": "run one method",
    "watch": "follow a run or a sweep in the browser",
    "sweep": "run a grid of settings and seeds",
    "contest": "find the method that suits your data",
    "export": "write the model that a client was scored with",
    "data": "show which samples each client gets",
    "methods": "list the methods",
    "settings": "list or explain the settings",
    "compare": "compare finished runs",
    "figures": "write the plots of a run as files for papers",
    "deploy": "start a SuperLink and SuperNodes on this machine",
}
#: Those in ``fedapps/lab/commands``.
LAB = {"sweep", "watch", "contest", "data", "compare", "figures"}
#: Faults of the folders that a user names, not of the program.
NO_ROOM = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt_once)
    try:
        check_system()  # before a command is imported
        arguments = parse(argv)
        respect_no_color()
        status = int(arguments.command(arguments))
        sys.stdout.flush()
        return status
    except UserError as error:
        report_error(str(error))
        return USAGE_ERROR
    except RunFailed as error:
        report_error(f"the run failed: {error}")
        return 1
    except ModuleNotFoundError as error:
        if not (line := what_to_install(error, "this command")):
            raise
        report_error(line)
        return USAGE_ERROR
    except KeyboardInterrupt:
        print("fedapps: interrupted", file=sys.stderr)
        return INTERRUPTED
    except RuntimeError as error:  # of Path.expanduser
        if not (known := homeless(error, argv or sys.argv)):
            raise
        report_error(str(known))
        return USAGE_ERROR
    except BrokenPipeError:  # the reader of our output has exited, for example `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno not in NO_ROOM or not error.filename:
            raise
        report_error(f"{error.filename}: cannot be read or written: {error.strerror}")
        return USAGE_ERROR


def report_error(text: str) -> None:
    """Print the error that ended the command."""
    print(f"fedapps: {text}", file=sys.stderr)


def entry() -> None:
    """Entry point of the installed command."""
    try:
        settle()
    except UserError as error:
        report_error(str(error))
        sys.exit(USAGE_ERROR)
    sys.exit(main())


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the parsed command line; settings may precede and follow options."""
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        prog="fedapps",
        description="Federated-learning methods for heterogeneous clients, on Flower.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text)
        if argv and argv[0] == name:
            room = "fedapps.lab.commands" if name in LAB else "fedapps.commands"
            module: Any = import_module(f"{room}.{name}")
            command.set_defaults(command=module.execute)
            module.add_options(command)
    arguments, rest = parser.parse_known_args(argv)
    if rest and (not hasattr(arguments, "settings") or any(text.startswith("-") for text in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        arguments.settings += rest
    return arguments


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _interrupt_once(*_: Any) -> None:
    """Interrupt; further Ctrl-C would cut off the end of the run, and its last line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    entry()

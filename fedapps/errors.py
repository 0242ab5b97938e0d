"""Errors that end a command, and exit statuses: 2 for invalid input, 1 for a failed
run.
"""

import re
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

#: The options of commands that are arguments of the functions in Python.
ARGUMENTS = {
    "overwrite": "overwrite=True",
    "resume": "resume=True",
    "trust": "trust=True",
    "nodes": "num_clients",
    "data": "data_folder",
    "gpus-per-client": "gpus_per_client",
    "gpus-per-run": "gpus_per_run",
    **{
        name: name
        for name in (
            "budget",
            "client",
            "deployment",
            "engine",
            "jobs",
            "methods",
            "out",
            "reference",
            "scale",
            "workers",
            "worst",
        )
    },
}
#: An option, and its value if it is an engine, a number, a path, or before a colon.
OPTION = re.compile(
    r"(?<![\w/-])--(?P<name>[a-z][a-z-]*)"
    r"(?: (?P<engine>inline|ray|deployment)\b| (?=[-\d/]|[^\s:]+:))?"
)
#: The names in the message about an unknown setting.
UNKNOWN = re.compile(r"unknown setting '[^']*': (did you mean '[^']*')?")
#: What stands for an argument in messages about settings, and the file that data in
#: memory become.
SETTINGS = (
    (UNKNOWN, lambda match: match[0].replace("-", "_")),
    (re.compile(r"\bdata\.label=([\w-]+)"), r"label='\1'"),
    (re.compile(r"\bdata\.natural-id=([\w-]+)"), r"client='\1'"),
    (re.compile(r"\bdata\.label\b"), "label"),
    (re.compile(r"\bdata\.natural-id\b"), "client"),
    (re.compile(r"[^\s']*/in-memory/DataFrame-[0-9a-f]+(\.arrow)?"), "the DataFrame"),
    (re.compile(r"[^\s']*/in-memory/arrays-[0-9a-f]+(\.arrow)?"), "the table of arrays"),
)

#: Exit statuses other than 0 and 1: bad settings or input; stopped by Ctrl-C or
#: SIGTERM.
USAGE_ERROR, INTERRUPTED = 2, 130


#: Packages of the extra `app`. Commands and runs need them, the library alone does not.
APPLICATION = {
    "torch",
    "torchvision",
    "scipy",
    "daqp",
    "ray",
    "flwr_datasets",
    "datasets",
    "sklearn",
    "pyarrow",
    "matplotlib",
    "PIL",
}


#: What a site installs for a package; for the others, all of the application.
SITE_EXTRAS = {"torch": "site,torch", "scipy": "site,solvers", "daqp": "site,solvers"}


class UserError(Exception):
    """Bad settings or input. The message is one line that says what is wrong, where,
    and how to fix it.
    """


def refuse_first(*cases: tuple[object, str]) -> None:
    """Raise ``UserError`` with the message of the first case that holds."""
    for holds, message in cases:
        if holds:
            raise UserError(message)


class SiteFault(UserError):
    """A fault whose message holds nothing of a site's data, so that it may leave it."""


class RunFailed(Exception):
    """The run started but did not complete."""


def what_to_install(error: ModuleNotFoundError, what: str, site: bool = False) -> str:
    """Return the line that says which package ``what`` needs and how to install it, at
    a site with as little as possible; "" if it is none of the application's.
    """
    missing = str(error.name).partition(".")[0]
    if missing not in APPLICATION:
        return ""
    extra = SITE_EXTRAS.get(missing, "app") if site else "app"
    return f"{what} needs {missing}, which is not installed: pip install 'fedapps[{extra}]'"


def reason(error: BaseException, most: int = 300) -> str:
    """Return the message of an error in one line, or its type if it has none."""
    return (" ".join(str(error).split()) or type(error).__name__)[:most]


def first_line(error: BaseException) -> str:
    """Return the type of an error and the first line of its message."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:300]


def in_python(function: Callable[P, T]) -> Callable[P, T]:
    """Return the function with errors that name arguments instead of the options of a
    command: ``overwrite=True``, not ``--overwrite``, ``label``, not ``data.label``.
    """

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except (UserError, RunFailed) as error:
            error.args = (_with_arguments(str(error)),)
            raise
        except RuntimeError as error:
            raise (homeless(error, [*args, *kwargs.values()]) or error) from None

    return called


def homeless(error: RuntimeError, words: Iterable[object]) -> UserError | None:
    """Return the error for a path below a home that does not exist; ``None`` for
    another error. ``words``: where the path may be.
    """
    if str(error) != "Could not determine home directory.":
        return None
    path = next((word for word in words if "~" in str(word)), "~")
    return UserError(f"{path}: there is no such user, or no home: write the whole path")


def _with_arguments(text: str) -> str:
    """Return a message with arguments in place of options. Commands in quotation marks
    are unchanged.
    """
    parts = re.split(
        "(`[^`]*`|\N{LEFT DOUBLE QUOTATION MARK}.*?\N{RIGHT DOUBLE QUOTATION MARK})", text
    )
    parts[::2] = [OPTION.sub(_argument, part.replace(" (--nodes)", "")) for part in parts[::2]]
    for pattern, argument in SETTINGS:
        parts[::2] = [pattern.sub(argument, part) for part in parts[::2]]
    return "".join(parts)


def _argument(match: re.Match[str]) -> str:
    name = ARGUMENTS.get(match["name"])
    if name is None:
        return match[0]
    if match["engine"]:
        return f"{name}={match['engine']!r}"
    return name + "=" * match[0].endswith(" ")


def check_system() -> None:
    """Raise ``UserError`` on Windows: folders are locked by ``flock``, and others read
    who holds a lock.
    """
    if sys.platform == "win32":
        raise UserError(
            "runs do not start on Windows: install in the Windows Subsystem for Linux "
            "(`wsl --install`) instead"
        )

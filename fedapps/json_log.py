"""Logs as JSON lines, for systems that read logs: ``--log-format json``.

Each line is an object with ``time`` (UTC), ``level``, ``message`` and, where they are
known, ``run`` (the name of the results folder), ``round`` and ``client``. Lines of the
command itself also have an ``event``. Worker processes use the same format.
"""

import json
import logging
import os
import re
import time
from datetime import datetime
from typing import Any

#: The environment variable that passes the format to the command's processes.
VARIABLE = "FEDAPPS_LOG_FORMAT"
ROUND = re.compile(r"\bround (\d+)\b", re.I)
CLIENT = re.compile(r"\bclient (\S+?)(?=[:,]\s| left out)")
#: The beginning of a line of Flower, its server or logging: a time (optional), a level.
HEAD = re.compile(
    r"^(?:(\d{4}-\d\d-\d\d[ T][\d:,.]+Z?)\s+)?(DEBUG|INFO|WARNING|ERROR|CRITICAL)\s*:?\s+(.*)$",
    re.S,
)
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def choose(log_format: str) -> None:
    """Set the log format, ``text`` or ``json``, of this process and of its children."""
    if log_format == "json":
        os.environ[VARIABLE] = "json"
    else:
        os.environ.pop(VARIABLE, None)
    if logging.lastResort:  # the handler for modules that have none
        logging.lastResort.setFormatter(Formatter() if log_format == "json" else None)


def respect_no_color() -> None:
    """Remove the colours from Flower's log if NO_COLOR is set (no-color.org)."""
    if not os.environ.get("NO_COLOR"):
        return
    import flwr.common  # noqa: F401 - makes the handler

    for handler in logging.getLogger("flwr").handlers:
        if hasattr(handler, "colored"):
            handler.colored = False


def chosen() -> bool:
    """Return whether logs are JSON lines."""
    return os.environ.get(VARIABLE) == "json"


def line(level: str, message: str, when: float | None = None, **more: Any) -> str:
    """Return one line, without its end. ``when``: seconds since 1970, default: now.
    Fields with the value ``None`` or "" are omitted.
    """
    seconds, thousandths = divmod(round(1000 * (time.time() if when is None else when)), 1000)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{thousandths:03d}Z"
    known = {key: value for key, value in more.items() if value is not None and value != ""}
    return json.dumps(
        {"time": stamp, "level": level, "message": message, **known},
        ensure_ascii=False,
        default=str,
    )


class Converter:
    """Converts the lines of a run's log to JSON lines. ``[ROUND 3/10]`` also sets the
    round of the lines that follow.

    ``recorded``: the lines were written earlier, so a line without a time gets the time
    of the previous line that has one.
    """

    def __init__(self, recorded: bool = False, **more: Any) -> None:
        self.more, self.recorded = more, recorded
        self.round: int | None = None
        self.when: float | None = None

    def convert(self, text: str) -> str:
        """Return a line of text as JSON, with its own time if that is UTC, else with
        the current time.
        """
        plain = COLOURS.sub("", text).rstrip()
        head = HEAD.match(plain)
        own = _seconds(head[1]) if head and head[1] else None
        self.when = (own or self.when) if self.recorded else own
        level, message = (head[2], head[3]) if head else ("INFO", plain)
        return self.line(level, message, self.when)

    def line(self, level: str, message: str, when: float | None = None) -> str:
        """Return a message as JSON."""
        message = message.strip()
        named, client = ROUND.search(message), CLIENT.search(message)
        number = int(named[1]) if named else self.round
        if message.startswith("["):
            self.round = number
        return line(
            level, message, when, round=number, client=client[1] if client else None, **self.more
        )


def _seconds(stamp: str) -> float | None:
    """Return a time in UTC as seconds since 1970; ``None`` if the text names no time
    zone.
    """
    try:
        return datetime.fromisoformat(stamp).timestamp() if stamp.endswith("Z") else None
    except ValueError:
        return None


class Formatter(logging.Formatter):
    """Formats the records of a logger as JSON lines."""

    def __init__(self, **more: Any) -> None:
        super().__init__()
        self.lines = Converter(**more)

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as JSON; a traceback is part of its message."""
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + self.formatException(record.exc_info)
        return self.lines.line(record.levelname, message, record.created)

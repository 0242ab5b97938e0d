"""Converts settings to and from TOML: files, assignments on the command line, the
configuration for `flwr run`.
"""

import errno
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from fedapps.errors import UserError

Value = bool | int | float | str
#: Parts of a dotted key; the time to read one grows with their square.
DEEPEST = 32
_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_BEFORE = r"(?:^[ \t\[]*+|[{,][ \t]*+)"
DEEP_KEY = re.compile(rf"(?m){_BEFORE}{_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{DEEPEST}}}")


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file with flat keys. Raises ``UserError`` if it is
    missing or invalid.

    An installed wheel has `experiments/default.toml` in its package. That file is read
    if the current folder has none.
    """
    if not path.exists() and (packaged := Path(__file__).parent / path).is_file():
        path = packaged
    return flatten_toml(load_toml(path))


def load_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file. Raises ``UserError`` if it is missing or
    invalid.
    """
    try:
        return parse_toml(file_text(path))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise UserError(f"{path}: cannot be read as TOML: {error}") from None


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text. Raises ``TOMLDecodeError``, also for keys and
    values nested so deeply that reading them would take minutes or not end well.
    """
    if found := DEEP_KEY.search(text):
        raise tomllib.TOMLDecodeError(f"a key of more than {DEEPEST} parts: {found[0][:40]!r}")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise tomllib.TOMLDecodeError("values are nested too deeply") from None


def file_text(path: Path, errors: str = "strict") -> str:
    """Return the text of a regular file. Raises ``OSError`` for anything else: reading
    a pipe, for example, would wait for a writer.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), encoding="utf-8", errors=errors) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
        return file.read()


def flatten_toml(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one level of dotted keys."""
    out: dict[str, Any] = {}
    for key, value in tables.items():
        out |= (
            flatten_toml(value, f"{prefix}{key}.")
            if isinstance(value, Mapping)
            else {f"{prefix}{key}": value}
        )
    return out


def parse_assignment(text: str) -> tuple[str, Any]:
    """Return key and value of ``key=value``. The value is parsed as TOML (3, 0.1, true,
    "text"); if that fails, it is text.
    """
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise UserError(
            f"{text!r}: write a setting as key=value, for example num-rounds=20, or name a file "
            "that ends in .toml"
        )
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    return key.strip(), parsed


def to_toml(config: Mapping[str, Value]) -> str:
    """Return a flat configuration as TOML text with its dotted keys in tables."""
    tables: dict[str, Any] = {}
    for key, value in config.items():
        *path, name = key.split(".")
        table = tables
        for part in path:
            table = table.setdefault(part, {})
        table[name] = value
    return tomli_w.dumps(tables)


def quoted_toml(values: Mapping[str, Value]) -> str:
    """Return ``values`` as TOML, one line per key. Dotted keys are quoted; Flower
    flattens them to the same keys.
    """
    return tomli_w.dumps(values)


def toml_value(value: Value) -> str:
    """Return a value as TOML."""
    return tomli_w.dumps({"value": value}).removeprefix("value = ").rstrip("\n")


def toml_text(value: Any) -> str:
    """Return a value or a list of values as TOML on one line. Values that are neither
    bool, number nor text are converted to text.
    """
    if isinstance(value, list):
        return f"[{', '.join(map(toml_text, value))}]"
    return toml_value(value if isinstance(value, bool | int | float | str) else str(value))


def given_by(words: list[str]) -> dict[str, Any]:
    """Return the settings of TOML files and ``key=value`` assignments; assignments
    override files.
    """
    given: dict[str, Any] = {}
    for text in filter(_is_file, words):
        given |= read_toml(Path(text))
    return given | assignments(words)


def assignments(words: list[str]) -> dict[str, Any]:
    """Return the settings that assignments ``key=value`` give."""
    return dict(parse_assignment(text) for text in words if not _is_file(text))


def _is_file(text: str) -> bool:
    return text.endswith(".toml") and "=" not in text

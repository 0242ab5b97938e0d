"""Conversion of settings to and from TOML: files, assignments of the command line, the
configuration for `flwr run`.
"""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedapps.errors import UserError

Value = bool | int | float | str


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file with flat keys. Raises ``UserError`` if it is
    missing or invalid.

    A wheel has `experiments/default.toml` in its package: found there where the current
    folder has none.
    """
    if not path.exists() and (inside := Path(__file__).parent / path).is_file():
        path = inside
    return flatten_toml(load_toml(path))


def load_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file. Raises ``UserError`` if it is missing or
    invalid.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise UserError(f"{path}: cannot be read as TOML: {error}") from None


def flatten_toml(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one level of dotted keys."""
    out: dict[str, Any] = {}
    for key, value in tables.items():
        out |= (
            flatten_toml(value, f"{prefix}{key}.")
            if isinstance(value, dict)
            else {f"{prefix}{key}": value}
        )
    return out


def parse_assignment(text: str) -> tuple[str, Any]:
    """Return key and value of ``key=value``; the value is parsed as TOML if possible
    (3, 0.1, true, "text"), else it is text.
    """
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise UserError(
            f"{text!r}: write key=value, for example num-rounds=20 (files end in .toml)"
        )
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    return key.strip(), parsed


def to_toml(config: Mapping[str, Value]) -> str:
    """Return a flat configuration as TOML text with one level of tables."""
    tables: dict[str, list[str]] = {"": []}
    for key, value in config.items():
        table, _, name = key.rpartition(".")
        tables.setdefault(table, []).append(f"{name} = {toml_value(value)}")
    blocks = [
        "\n".join(lines) if not table else "\n".join([f"[{table}]", *lines])
        for table, lines in tables.items()
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def quoted_toml(values: Mapping[str, Value]) -> str:
    """Return ``values`` as TOML, one line per key; dotted keys are quoted, which Flower
    flattens to the same keys.
    """
    return "".join(f"{_toml_string(key)} = {toml_value(value)}\n" for key, value in values.items())


def toml_value(value: Value) -> str:
    """Return a value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return repr(float(value))  # float() first: NumPy scalars have another repr
    return _toml_string(value)


def toml_text(value: Any) -> str:
    """Return a value or a list of values as TOML; what is neither true or false, a
    number nor text as text.
    """
    if isinstance(value, list):
        return f"[{', '.join(map(toml_text, value))}]"
    return toml_value(value if isinstance(value, bool | int | float | str) else str(value))


def _toml_string(text: str) -> str:
    # JSON's escapes are a subset of TOML's, but TOML also forbids a bare DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")

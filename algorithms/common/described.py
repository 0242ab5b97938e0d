"""The help of a public class: what its docstring says, and what follows from its
declarations, which are written once: arguments, an example, contract and source.
"""

import inspect
import sys
from dataclasses import fields
from types import UnionType
from typing import Any, get_args

from fedapps.algorithms.common.options import Declared, Options

#: Values for arguments without a default, in examples.
VALUES = {
    "strategy": "FedAvg()",
    "first": "FedAvg()",
    "then": "SuPerFed()",
    "rounds": "10",
    "head": '["fc2"]',
    "share": '"body"',
    "normalisation": '["bn1"]',
    "num_features": "8",
    "shape": "(1, 8, 8)",
    "num_classes": "10",
    "size": "64",
    "samples": "100",
    "RobustOptions": 'RobustOptions(rule="median")',
    "PrivacyOptions": "PrivacyOptions(noise_multiplier=1.0)",
}


def describe(kind: type) -> None:
    """Complete the docstring of a public class."""
    if "_described" in vars(kind) or issubclass(kind, Exception):
        return
    kind._described = True  # type: ignore[attr-defined]
    parts = [inspect.cleandoc(kind.__doc__ or "")]
    if lines := "\n".join(arguments(kind)):
        parts.append(f"Arguments:\n{lines}")
    if not issubclass(kind, Options):
        if example := example_of(kind):
            parts.append(f"Example:\n\n{example}")
        module = inspect.cleandoc(sys.modules[kind.__module__].__doc__ or "")
        parts += [
            text
            for text in module.split("\n\n")
            if text.startswith(("Contract", "Source")) and text not in parts[0]
        ]
    kind.__doc__ = "\n\n".join(parts)


def arguments(kind: type, indent: str = "    ") -> list[str]:
    """Return a line per argument, and per field of options."""
    if issubclass(kind, Options):
        lines = []
        for field in fields(kind):
            declared: Declared | None = field.metadata.get("option")
            if declared:
                allowed = f" ({declared.allowed})" if declared.allowed else ""
                lines.append(f"{indent}{field.name} = {field.default!r}: {declared.help}{allowed}")
        return lines
    lines = []
    for one in inspect.signature(kind).parameters.values():
        if one.kind is one.VAR_KEYWORD:
            typed, *_ = get_args(one.annotation) or (None,)
            names = ", ".join(getattr(typed, "__annotations__", ()))
            lines += [f"{indent}{names}: those of Flower's FedAvg"] if names else []
            continue
        text = "" if one.default is one.empty else f" = {one.default!r}"
        lines.append(f"{indent}{one.name}: {_kind(one.annotation)}{text}")
        lines += arguments(options, indent * 2) if (options := _options(one.annotation)) else []
    return lines


def example_of(kind: type) -> str:
    """Return five lines that use a strategy; "" for other classes."""
    if not hasattr(kind, "aggregate_train") or inspect.isabstract(kind):
        return ""
    given, names = [], {kind.__name__, "ClientGrid"}
    for one in inspect.signature(kind).parameters.values():
        options = _options(one.annotation)
        if one.default is one.empty and one.kind is not one.VAR_KEYWORD:
            made = VALUES.get(options.__name__ if options else one.name, one.name)
            given.append(made)
            names |= {word for word in ("FedAvg", "SuPerFed") if word in made}
        elif options:
            field = next(iter(fields(options)))
            given.append(f"options={options.__name__}({field.name}={field.default!r})")
        names |= {options.__name__} if options and options.__name__ in " ".join(given) else set()
    return f"""    from fedapps.strategies import {", ".join(sorted(names))}

    client_grid = ClientGrid(grid, seed=0)
    strategy = {kind.__name__}({", ".join(given)})
    result = strategy.start(client_grid, initial_arrays, num_rounds=3)"""


def _kind(annotation: Any) -> str:
    """Return an annotation in short, such as ``Sequence[str]``, ``Store | None``."""
    if isinstance(annotation, UnionType):
        return " | ".join(_kind(one) for one in get_args(annotation))
    name = getattr(annotation, "__name__", str(annotation)).replace("NoneType", "None")
    inside = [one.__name__ for one in get_args(annotation) if isinstance(one, type)]
    return f"{name}[{', '.join(inside)}]" if inside and name == "Sequence" else name


def _options(annotation: Any) -> type[Options] | None:
    kinds = [one for one in (annotation, *get_args(annotation)) if isinstance(one, type)]
    return next((one for one in kinds if issubclass(one, Options)), None)

"""The strategies and their methods, as a table for the documentation that links each
contract: what the clients receive, must reply and keep.

The contract is in the docstring of the strategy's module, in the paragraph that begins
with "Contract".
"""

import inspect
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType

from flwr.serverapp.strategy import Strategy

from fedapps.methods.method import Method
from strategies import WarmStart

START, END = "<!-- contracts -->\n", "<!-- /contracts -->\n"
PARAGRAPH = re.compile(r"^Contract(?: of .*?)?[.:] (.*?)(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)


def contract_of(module: ModuleType) -> str:
    """Return the contract of a strategy's module in Markdown, on one line, or "" if it
    has none.
    """
    paragraph = PARAGRAPH.search(inspect.getdoc(module) or "")
    if not paragraph:
        return ""
    text = re.sub(r"``(.*?)``", r"`\1`", " ".join(paragraph[1].split())).replace("|", r"\|")
    return text[0].upper() + text[1:]


def modules_of(folder: Path) -> dict[str, list[str]]:
    """Return the names of the concrete strategies in every module of the folder
    ``strategies``.
    """
    out = {}
    for path in sorted(folder.glob("[!_]*.py")):
        module = import_module(f"strategies.{path.stem}")
        kinds = [
            name
            for name, kind in inspect.getmembers(module, inspect.isclass)
            if issubclass(kind, Strategy)
            and kind.__module__ == module.__name__
            and not name.startswith("_")
        ]
        if kinds:
            out[module.__name__] = kinds
    return out


def table(folder: Path, methods: Mapping[str, Method]) -> str:
    """Return the Markdown table: strategies, linked to their modules, and methods."""
    built = {
        name: method.builds.__name__ if method.builds else WarmStart.__name__
        for name, method in methods.items()
    }
    rows = ["| strategy | method |", "| --- | --- |"]
    for module, kinds in modules_of(folder).items():
        links = ", ".join(f"[`{kind}`](../{module.replace('.', '/')}.py)" for kind in kinds)
        own = ", ".join(f"`{name}`" for name, used in built.items() if used in kinds)
        rows.append(f"| {links} | {own or '(a wrapper)'} |")
    return "\n".join(rows)


def with_contracts(text: str, folder: Path, methods: Mapping[str, Method]) -> str:
    """Return a page with the table between its markers. A page without markers is not
    changed.
    """
    head, opened, rest = text.partition(START)
    _, closed, tail = rest.partition(END)
    return f"{head}{START}\n{table(folder, methods)}\n\n{END}{tail}" if opened and closed else text

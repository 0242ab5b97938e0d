"""The contract of every strategy, as a table for the documentation: what its clients
receive, must reply and keep.

Each strategy's module says it in its docstring, in the paragraph that begins with
"Contract".
"""

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from flwr.serverapp.strategy import Strategy

from fedapps.methods.method import Method

START, END = "<!-- contracts -->\n", "<!-- /contracts -->\n"
PARAGRAPH = re.compile(r"^Contract(?: of .*?)?[.:] (.*?)(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)


def contract_of(module: ModuleType) -> str:
    """Return the contract of a strategy's module in Markdown, on one line; "" if it
    says none.
    """
    found = PARAGRAPH.search(inspect.getdoc(module) or "")
    if not found:
        return ""
    text = re.sub(r"``(.*?)``", r"`\1`", " ".join(found[1].split())).replace("|", r"\|")
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


def strategies_of(name: str, method: Method) -> list[str]:
    """Return the names of what a method's factory builds: the capitalised names that
    it, or a function that it calls, uses.
    """
    factory = method.strategy or method.wrap
    if factory is None:
        return ["WarmStart"]
    return list(dict.fromkeys(_names(factory)))


def _names(function: Any) -> Iterator[str]:
    function = getattr(function, "func", function)  # of a functools.partial
    if inspect.isclass(function):
        yield function.__name__
        return
    codes = [function.__code__]
    while codes:
        code: CodeType = codes.pop()
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        for name in code.co_names:
            value = function.__globals__.get(name)
            if inspect.isclass(value) and issubclass(value, Strategy):
                yield name
            elif inspect.isfunction(value) and value.__module__ == function.__module__:
                yield from _names(value)


def table(folder: Path, methods: Mapping[str, Method]) -> str:
    """Return the Markdown table: strategies, methods, contract in short."""
    built = {name: strategies_of(name, method) for name, method in methods.items()}
    rows = ["| strategy | method | contract |", "| --- | --- | --- |"]
    for module, kinds in modules_of(folder).items():
        own = [name for name, used in built.items() if set(used) & set(kinds)]
        cells = (
            ", ".join(f"`{word}`" for word in words) or "(a wrapper)" for words in (kinds, own)
        )
        pages = dict.fromkeys(f"{methods[name].page or name}.md" for name in own)
        contract = shortened(contract_of(import_module(module)), folder.parent / "docs", [*pages])
        rows.append(f"| {' | '.join(cells)} | {contract} |")
    return "\n".join(rows)


def shortened(contract: str, docs: Path, pages: Iterable[str]) -> str:
    """Return the first sentence of a contract, with a link to the section Messages of
    the method's page, which has the rest; the whole contract if no page has one.
    """
    first, *rest = re.split(r"(?<=\.) (?=[A-Z])", contract, maxsplit=1)
    for page in pages:
        path = docs / page
        if rest and path.is_file() and "\n## Messages\n" in path.read_text(encoding="utf-8"):
            return f"{first} More: [messages]({page}#messages)."
    return contract


def with_contracts(text: str, folder: Path, methods: Mapping[str, Method]) -> str:
    """Return a page with the table between its markers; a page without them as it
    is.
    """
    head, found, rest = text.partition(START)
    _, closed, tail = rest.partition(END)
    return f"{head}{START}\n{table(folder, methods)}\n\n{END}{tail}" if found and closed else text

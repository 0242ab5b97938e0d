"""`fedapps settings`: lists and explains the settings. `--write` updates a checkout's
generated files, `--check` looks at them.
"""

import argparse
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedapps.errors import UserError
from fedapps.methods import checked_method
from fedapps.methods.method import Method
from fedapps.own_code import is_reference, load
from fedapps.registered import reference_of, registered
from fedapps.settings_reference import (
    Setting,
    all_tables,
    by_table,
    chosen,
    described,
    markdown_page,
    markdown_table,
    settings_in,
    table_users,
    toml_block,
    with_tables,
    with_toml,
)
from fedapps.tasks.registry import checked_task

ROOT = Path(__file__).resolve().parents[1]


def settings(arguments: argparse.Namespace) -> int:
    """Print all settings, or those of a table or key, or update or check the generated
    files; return the exit status.
    """
    known = settings_in(all_tables())
    if is_reference(arguments.name) or (
        arguments.name not in by_table(known) and is_registered(arguments.name)
    ):
        print("\n".join(described(setting) for setting in settings_in(tables_of(arguments.name))))
        return 0
    if arguments.check:
        if stale := [str(path.relative_to(ROOT)) for path in stale_files(generated(ROOT))]:
            raise UserError(f"{', '.join(stale)}: what is generated there is stale: make generate")
        print("nothing is stale")
    elif arguments.write:
        written = write(ROOT)
        print("\n".join(f"written: {path}" for path in written) or "nothing has changed")
    elif arguments.name:
        print("\n".join(described(setting) for setting in chosen(known, [arguments.name])))
    else:
        print(overview(known, shutil.get_terminal_size().columns))
    return 0


def is_registered(name: str) -> bool:
    """Return whether an installed package registers a method or a task of this name."""
    return (
        bool(name)
        and "." not in name
        and (name in registered("method") or name in registered("task"))
    )


def tables_of(name: str) -> dict[str, type]:
    """Return the table of a method or a task of the user's own. Raises
    ``UserError``.
    """
    found = load(
        "settings", reference_of("method", name) or reference_of("task", name) or name, name
    )
    kind = (
        checked_method("settings", name, found)
        if isinstance(found, Method)
        else checked_task(name, found)
    )
    if kind.options is None:
        raise UserError(f"{name} has no options of its own")
    return {kind.table: kind.options}


def overview(known: Sequence[Setting], width: int) -> str:
    """Return an overview of the keys of every table, starting with the top level."""
    tables = by_table(known)
    margin = max(map(len, tables)) + 2
    blocks = [
        textwrap.fill(
            ", ".join(setting.name for setting in own),
            width=max(width, margin + 30),
            initial_indent=f"{table:<{margin}}",
            subsequent_indent=" " * margin,
            break_on_hyphens=False,
        )
        for table, own in tables.items()
    ]
    return "\n".join([*blocks, "", "fedapps settings TABLE | TABLE.KEY says what they mean."])


def generated(root: Path) -> dict[Path, str]:
    """Return the up-to-date text of the generated files and of the pages with generated
    tables. Raises ``UserError``.
    """
    project, docs = root / "pyproject.toml", root / "docs"
    if not project.is_file() or not docs.is_dir():
        raise UserError(
            f"--write: {root} holds no pyproject.toml with a folder docs beside it: run it in a "
            "checkout"
        )
    from fedapps.claims import index
    from fedapps.contracts import with_contracts
    from fedapps.example_diffs import with_diffs
    from fedapps.exports import SHARED, exported, with_exports, with_rows
    from fedapps.methods import METHODS

    known, users = settings_in(all_tables()), table_users()
    tables = by_table(known)
    texts = {project: with_toml(project.read_text(encoding="utf-8"), toml_block(known, users))}
    for page in sorted(docs.rglob("*.md")):
        text = with_tables(
            page.read_text(encoding="utf-8"),
            lambda words: markdown_table(chosen(known, words), tables),
        )
        texts[page] = with_diffs(with_contracts(text, root / "strategies", METHODS), root)
    if (docs / "results").is_dir():
        texts[docs / "results" / "README.md"] = index(root)
    methods = docs / "methods.md"
    texts |= {
        docs / "settings.md": markdown_page(known, users),
        methods: with_rows(texts[methods], METHODS),
    }
    for package in SHARED:
        path = root / package / "__init__.py"
        texts[path] = with_exports(
            path.read_text(encoding="utf-8"), exported(package, root / package)
        )
    return texts


def write(root: Path) -> list[Path]:
    """Update the generated files and return those that have changed."""
    texts = generated(root)
    stale = stale_files(texts)
    for path in stale:
        path.write_text(texts[path], encoding="utf-8")
    return stale


def stale_files(texts: Mapping[Path, str]) -> list[Path]:
    """Return the files that are missing or hold something else than their text."""
    return [
        path
        for path, text in texts.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]

"""Update all text that is generated from declarations: settings in pyproject.toml and
docs/, exports, tables of methods, claims.

    python -m tools.generate            write it
    python -m tools.generate --check    fail if a file is stale
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedapps.methods import METHODS
from fedapps.settings.reference import all_tables, by_table, chosen, settings_in
from tools.claims import CHART, INDEX, chart, index, papers, with_claims
from tools.example_diffs import with_diffs
from tools.exports import SHARED, exported, with_exports, with_rows
from tools.settings_pages import (
    markdown_page,
    markdown_table,
    pages_of_tables,
    table_users,
    toml_block,
    with_tables,
    with_toml,
)

ROOT = Path(__file__).resolve().parents[1]


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the generated files; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.generate", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a file is stale"
    )
    if not parser.parse_args(argv).check:
        print("\n".join(f"written: {path}" for path in write(ROOT)) or "nothing has changed")
    elif stale := [str(path.relative_to(ROOT)) for path in stale_files(generated(ROOT))]:
        print(f"{', '.join(stale)}: stale, run: make generate", file=sys.stderr)
        return 1
    return 0


def generated(root: Path) -> dict[Path, str]:
    """Return the current text of the generated files and of the pages with generated
    tables.
    """
    project, docs = root / "pyproject.toml", root / "docs"
    known, users = settings_in(all_tables()), table_users()
    tables = by_table(known)
    texts = {project: with_toml(project.read_text(encoding="utf-8"), toml_block(known, users))}
    for page in sorted(docs.rglob("*.md")):
        text = with_tables(
            page.read_text(encoding="utf-8"),
            lambda words: markdown_table(chosen(known, words), tables),
        )
        texts[page] = with_diffs(text, root)
    known_papers = papers(root)
    for paper in known_papers:
        page = docs / "results" / paper.page
        texts[page] = with_claims(texts[page], paper)
    if known_papers:
        texts |= {docs / INDEX: index(known_papers), docs / CHART: chart(known_papers)}
    methods = docs / "methods.md"
    texts |= {
        docs / "settings.md": markdown_page(
            known,
            users,
            pages_of_tables(
                {path.name: text for path, text in texts.items() if path.parent == docs}
            ),
        ),
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
    """Return the files that are missing or differ from their text."""
    return [
        path
        for path, text in texts.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]


if __name__ == "__main__":
    sys.exit(main())

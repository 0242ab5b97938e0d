"""Write the address of the repository into what is released.

    python tools/address.py https://HOST/OWNER/REPOSITORY v1.2.3

The project names no address of its own: whoever releases it does. ``[project.urls]``
is added to ``pyproject.toml``, and the README's relative links, which lead nowhere on
the page of a package index, become absolute ones to the files of that tag.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)]+)\)")


def absolute(text: str, address: str, tag: str) -> str:
    """Return Markdown whose relative links lead to the files of a tag, and pictures to
    their bytes.
    """

    def link(found: re.Match[str]) -> str:
        mark, words, path = found.groups()
        return f"{mark}[{words}]({address}/{'raw' if mark else 'blob'}/{tag}/{path})"

    return LINK.sub(link, text)


def with_urls(project: str, address: str) -> str:
    """Return the text of ``pyproject.toml`` with the table ``[project.urls]``."""
    pages = {"Repository": "", "Issues": "/issues", "Changelog": "/blob/main/CHANGELOG.md"}
    lines = [f'{name} = "{address}{page}"' for name, page in pages.items()]
    table = "\n".join(["[project.urls]", *lines])
    return project.replace("[project.scripts]\n", f"{table}\n\n[project.scripts]\n", 1)


def main(address: str, tag: str) -> None:
    """Write both files."""
    for name, change in (
        ("README.md", lambda text: absolute(text, address, tag)),
        ("pyproject.toml", lambda text: with_urls(text, address)),
    ):
        path = ROOT / name
        path.write_text(change(path.read_text("utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])

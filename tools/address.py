"""Write the address of the repository into the files of a release.

    python tools/address.py https://HOST/OWNER/REPOSITORY v1.2.3

The project does not contain its own address: it is set when a release is made.
``[project.urls]`` is added to ``pyproject.toml``. The README's relative links, which do
not work on the page of a package index, become absolute links to the files of the tag.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)]+)\)")


def absolute(text: str, address: str, tag: str) -> str:
    """Return the Markdown with relative links replaced by links to the files of a tag;
    links of images lead to the raw files.
    """

    def link(match: re.Match[str]) -> str:
        mark, words, path = match.groups()
        return f"{mark}[{words}]({address}/{'raw' if mark else 'blob'}/{tag}/{path})"

    return LINK.sub(link, text)


def with_urls(project: str, address: str) -> str:
    """Return the text of ``pyproject.toml`` with the table ``[project.urls]``."""
    pages = {"Repository": "", "Issues": "/issues", "Changelog": "/blob/main/CHANGELOG.md"}
    lines = [f'{name} = "{address}{page}"' for name, page in pages.items()]
    table = "\n".join(["[project.urls]", *lines])
    return project.replace("[project.scripts]\n", f"{table}\n\n[project.scripts]\n", 1)


def main(address: str, tag: str) -> None:
    """Update both files."""
    for name, change in (
        ("README.md", lambda text: absolute(text, address, tag)),
        ("pyproject.toml", lambda text: with_urls(text, address)),
    ):
        path = ROOT / name
        path.write_text(change(path.read_text("utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])

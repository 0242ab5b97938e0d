"""Add the site of a version to the folder that holds the sites of all versions.

    python tools/versioned_docs.py SITE PAGES v1.2.3

The front page leads to the newest version and names the others.
"""

import re
import shutil
import sys
from pathlib import Path

VERSION = re.compile(r"v(\d+)\.(\d+)\.(\d+)(.*)")
FRONT = """<!doctype html>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={newest}/">
<title>fedapps: documentation</title>
<p>fedapps, documentation by version:
{links}
"""


def order(version: str) -> tuple[tuple[int, ...], bool, str]:
    """Return what versions are sorted by: 1.10 after 1.9, 1.0.0rc1 before 1.0.0."""
    match = VERSION.fullmatch(version)
    assert match, f"{version} is no version, such as v1.2.3"
    *numbers, suffix = match.groups()
    return tuple(map(int, numbers)), not suffix, suffix


def main(site: Path, pages: Path, version: str) -> None:
    """Replace the version's site by ``site``, and the front page."""
    order(version)  # fails before anything is removed
    shutil.rmtree(pages / version, ignore_errors=True)
    shutil.copytree(site, pages / version)
    known = [path.name for path in pages.iterdir() if VERSION.fullmatch(path.name)]
    newest, *_ = known = sorted(known, key=order, reverse=True)
    links = "\n".join(f'<a href="{name}/">{name}</a>' for name in known)
    (pages / "index.html").write_text(FRONT.format(newest=newest, links=links), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])

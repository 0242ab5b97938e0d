"""The differences between the files of an example, for the documentation: the lines of
an app that a method changes.
"""

import difflib
import re
from pathlib import Path

MARKED = re.compile(r"^(<!-- diff: (\S+) -->)$.*?^(<!-- /diff -->)$", re.MULTILINE | re.DOTALL)
FOLDER = Path("examples/quickstart/quickstart")


def changed(folder: Path, name: str) -> list[str]:
    """Return the lines, beginning with - or +, that turn ``client_app.py`` or
    ``server_app.py`` into the variant ``name``.
    """
    old, new = (
        (folder / f"{file}.py").read_text(encoding="utf-8").splitlines()
        for file in (f"{name.partition('_')[0]}_app", name)
    )
    parts = difflib.unified_diff(old, new, lineterm="", n=0)
    return [line for line in parts if not line.startswith(("---", "+++", "@@"))]


def with_diffs(text: str, root: Path) -> str:
    """Return a page with the differences between its markers."""
    return MARKED.sub(
        lambda part: (
            f"{part[1]}\n\n```diff\n"
            + "\n".join(changed(root / FOLDER, part[2]))
            + f"\n```\n\n{part[3]}"
        ),
        text,
    )

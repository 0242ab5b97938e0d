"""The claims of papers on the pages of docs/results: the index with a chart of the
verdicts, and on each paper's page a table of its claims.

They are generated from tables ``[[claim]]`` in the files of ``experiments/PAPER/``.
Each folder has a ``paper.toml`` with the paper's ``title``, the ``page`` of its
results, and the claims without an experiment.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from fedapps.errors import UserError
from fedapps.lab.charts.axes import rectangle
from fedapps.lab.charts.canvas import Area, Shape, Text, svg
from fedapps.lab.charts.theme import THEME, Colour

NOT_TRIED = "not tried"
#: All verdicts, in the order of the index. As scored there: by the paper's rule, not
#: by ours, such as a choice on validation samples.
VERDICTS = ("holds", "as scored there", "holds in part", "does not hold", NOT_TRIED)
#: How what we ask and no paper claims begins.
OURS = "(ours) "
PAPER = "paper.toml"
#: Sources that need no download.
BUILT_IN = ("digits", "generated", "letters", "ratings")
#: The page of the index and its picture, below docs/.
INDEX, CHART = "results/README.md", "images/verdicts.svg"
START = "<!-- claims: generated from experiments/*/*.toml by `make generate` -->"
END = "<!-- /claims -->"
#: Height of a bar, width of a claim and of the names on the left, in points.
BAR, CLAIM, NAMES = 17.0, 24.0, 100.0
COLOURS = [Colour(THEME.series[n].dark, THEME.series[n].dark) for n in (0, 2, 5, 1, 6)]


@dataclass(frozen=True)
class Claim:
    """One row on a paper's page, or a part of its line of claims that were not tried.

    ``item``: the table or figure. ``says``: the paper's claim. ``have``: our result;
    for ``not tried`` the reason. ``verdict``: one of ``VERDICTS``. ``section``: anchor
    on the page of results. ``scale``: the scale of the sweep that gave the numbers.
    ``command``: the command that repeats them, if it is not the sweep of the file.
    ``seeds``: number of seeds.
    """

    item: str
    says: str
    have: str
    verdict: str
    section: str = ""
    scale: str = ""
    command: str = ""
    seeds: int = 0

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"verdict = {self.verdict!r}: choose from {', '.join(VERDICTS)}")
        for name in ("item", "says", "have"):
            if not getattr(self, name):
                raise ValueError(f"{name}: is empty: give it a text")
        if self.verdict != NOT_TRIED and not (self.section and self.seeds):
            raise ValueError(f"{self.item}: add section and seeds, or set verdict = 'not tried'")


@dataclass(frozen=True)
class Paper:
    """A folder of experiments. ``page``: the page of its results, next to the index."""

    title: str
    page: str
    claims: tuple[Claim, ...]

    def of(self, ours: bool) -> list[Claim]:
        """Return our questions, or the paper's claims."""
        return [claim for claim in self.claims if claim.says.startswith(OURS) == ours]

    def counts(self, ours: bool = False) -> list[int]:
        """Return the numbers of the paper's claims by verdict, or of our questions."""
        found = [claim.verdict for claim in self.of(ours)]
        return [found.count(verdict) for verdict in VERDICTS]


def papers(root: Path) -> list[Paper]:
    """Return the papers of ``root``/experiments, by the names of their folders. Raises
    ``UserError``.
    """
    return [_paper(path) for path in sorted((root / "experiments").glob(f"*/{PAPER}"))]


def _paper(path: Path) -> Paper:
    table = _read(path)
    if not isinstance(table.get("title"), str) or not isinstance(table.get("page"), str):
        raise UserError(f"{path}: has no title or no page: add both")
    others = [file for file in sorted(path.parent.glob("*.toml")) if file != path]
    claims = [claim for file in (*others, path) for claim in _claims(file, _read(file))]
    return Paper(table["title"], table["page"], tuple(sorted(claims, key=_order)))


def _order(claim: Claim) -> tuple[bool, str]:
    return claim.verdict == NOT_TRIED, claim.item


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as TOML: {error}") from None


def _claims(path: Path, table: Mapping[str, Any]) -> Iterator[Claim]:
    known = {part.name for part in fields(Claim)}
    for entry in table.get("claim", []):
        if unknown := sorted(set(entry) - known):
            raise UserError(
                f"{path}: claim.{unknown[0]}: unknown key: choose from {', '.join(sorted(known))}"
            )
        if "sweep" in table and "command" not in entry:
            name = f"experiments/{path.parent.name}/{path.name}"
            entry = {
                **entry,
                "command": f"fedapps sweep {name}"
                + (f" --scale {entry['scale']}" if entry.get("scale") else "")
                + (" --data DIR" if _needs_folder(table) else ""),
            }
        try:
            yield Claim(**entry)
        except (ValueError, TypeError) as error:
            raise UserError(f"{path}: claim: {error}") from None


def _needs_folder(table: Mapping[str, Any]) -> bool:
    """Whether a study reads data that are neither built in nor on the hub."""
    return any(
        _needs_folder(value)
        if isinstance(value, dict)
        else key.split(".")[-1] == "source" and "/" not in str(value) and value not in BUILT_IN
        for key, value in table.items()
    )


def index(known: Sequence[Paper]) -> str:
    """Return the text of the index."""
    lines = [
        "# Results",
        "",
        START,
        "",
        "Every table and figure of the papers. A paper's page has numbers, verdicts and the "
        "commands that repeat them. "
        f"{_totals(known, False, 'claims of papers')} *As scored there*: by the paper's rule, for "
        "example a mixture chosen on test samples, and not by ours.",
        "",
        f"![Verdicts on the claims of each paper](../{CHART})",
        "",
        *_counted(known, False),
        "",
        f"What no paper claims and we asked: {_totals(known, True, 'questions')[3:]}",
        "",
        *_counted(known, True),
        "",
        "Jobs that compare methods: [contests on natural federations](natural-contests.md), "
        "[many small sites](many-sites.md), where federation pays, "
        "[two classes per client](two-classes.md), where it does not, "
        "[personal methods by default](personal-forms.md), "
        "[ten natural tables](natural-tables.md).",
        "",
        "Accuracy is that of each client on its own test samples ([measures](../measures.md)). "
        "*(1 seed)* proves nothing; other verdicts rest on three or more. "
        "With `--data DIR` a command reads `DIR/heart` and so on ([which files](../tasks.md)); "
        "without it, `ylecun/mnist` and the like come from the hub.",
    ]
    return "\n".join(lines) + "\n"


def _totals(known: Sequence[Paper], ours: bool, what: str) -> str:
    numbers = _sums(known, ours)
    counts = ", ".join(f"{n} {verdict}" for n, verdict in zip(numbers, VERDICTS, strict=True) if n)
    return f"Of {sum(numbers)} {what}: {counts}."


def _sums(known: Sequence[Paper], ours: bool) -> list[int]:
    return [sum(column) for column in zip(*(paper.counts(ours) for paper in known), strict=True)]


def _counted(known: Sequence[Paper], ours: bool) -> list[str]:
    """Return a table of the verdicts that occur, one row per paper."""
    what = "questions" if ours else "claims"
    some = [place for place, number in enumerate(_sums(known, ours)) if number]
    rows = [[what, *(VERDICTS[place] for place in some)]]
    names = ["paper"]
    for paper in known:
        if sum(counts := paper.counts(ours)):
            names.append(f"[{paper.title}]({paper.page})")
            rows.append([str(sum(counts)), *(str(counts[place]) for place in some)])
    lines = [f"| {name} | {' | '.join(row)} |" for name, row in zip(names, rows, strict=True)]
    return [lines[0], "| --- |" + " ---: |" * len(rows[0]), *lines[1:]]


def chart(known: Sequence[Paper]) -> str:
    """Return the picture of the index, SVG: one bar per paper, one part per verdict."""
    known = [paper for paper in known if paper.of(False)]
    longest = max(len(paper.of(False)) for paper in known)
    shapes: list[Shape] = []
    for place, (verdict, colour) in enumerate(zip(VERDICTS, COLOURS, strict=True)):
        left = NAMES + 104 * place
        shapes += [_box(left, 12, 12, colour), _text(left + 18, 12, verdict)]
    for row, paper in enumerate(known, 1):
        left, middle = NAMES, 14 + 24.0 * row
        name = re.split(r" \(|:", paper.title)[0]
        shapes.append(_text(left - 8, middle, name, "end"))
        for count, colour in zip(paper.counts(), COLOURS, strict=True):
            if count:
                shapes.append(_box(left, middle, CLAIM * count, colour))
                shapes.append(_text(left + CLAIM * count / 2, middle, str(count), "middle"))
            left += CLAIM * count
    size = (NAMES + CLAIM * max(longest, 20) + 16, 24.0 * len(known) + 30)
    return svg(shapes, size, THEME.surface).decode()


def _box(left: float, middle: float, width: float, colour: Colour) -> Area:
    corners = rectangle(left, middle - BAR / 2, left + width, middle + BAR / 2)
    return Area((corners,), colour, crisp=True)


def _text(x: float, middle: float, text: str, anchor: str = "start") -> Text:
    return Text(np.array([[x, middle + 3.5]]), text, 10, THEME.ink, anchor)


def with_claims(text: str, paper: Paper) -> str:
    """Return the text of a paper's page with the table of its claims."""
    return re.sub(
        rf"^{re.escape(START)}$.*?^{END}$",
        lambda _: f"{START}\n\n{table(paper)}\n\n{END}",
        text,
        flags=re.MULTILINE | re.DOTALL,
    )


def table(paper: Paper) -> str:
    """Return the claims of a paper, one row each."""
    lines = ["[Other papers](README.md)."]
    for says, claims in (("the paper says", paper.of(False)), ("we asked", paper.of(True))):
        rows = [_row(claim) for claim in claims if claim.verdict != NOT_TRIED]
        if rows:
            lines += ["", f"| claim | {says} | we found | verdict |", "| --- | --- | --- | --- |"]
            lines += rows
    if untried := [claim for claim in paper.claims if claim.verdict == NOT_TRIED]:
        lines += ["", f"Not tried (hours of one core): {'; '.join(map(_untried, untried))}."]
    return "\n".join(lines)


def _untried(claim: Claim) -> str:
    """Return item, reason and command of a claim that was not tried."""
    first = claim.have.split()[0]
    reason = (first.lower() if first.istitle() else first) + claim.have[len(first) :]
    file = " ".join(claim.command.split()[2:])  # what to run, or to sweep
    return f"{claim.item}: {reason}" + (f" (`{file}`)" if file else "")


def _row(claim: Claim) -> str:
    cells = (
        f"[{claim.item}](#{claim.section})",
        claim.says.removeprefix(OURS),
        claim.have,
        f"**{claim.verdict}**" + " (1 seed)" * (claim.seeds == 1),
    )
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

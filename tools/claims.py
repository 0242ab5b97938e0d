"""The index of results, docs/results/README.md: the claims of papers, our results, and
the commands that repeat them.

It is generated from tables ``[[claim]]`` in the files of ``experiments/PAPER/``. Each
folder has a ``paper.toml`` with the paper's ``title``, the ``page`` of its results, and
the claims without an experiment.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fedapps.errors import UserError

NOT_TRIED = "not tried"
#: All verdicts, in the order of the summary at the top of the index.
VERDICTS = ("holds", "holds in part", "does not hold", NOT_TRIED)
PAPER = "paper.toml"
#: Sources that need no download.
BUILT_IN = ("digits", "generated", "letters", "ratings")
READING = (
    "Accuracy is that of each client on its own test samples ([measures](../measures.md)). "
    "*Global* is the one federated model. Bytes are those of all training messages. † was "
    "computed aside: no command here prints it."
)
START = "<!-- claims: generated from experiments/*/*.toml by `make generate` -->"


@dataclass(frozen=True)
class Claim:
    """One row of the index, or a part of its line of claims that were not tried.

    ``item``: the table or figure. ``says``: the paper's claim. ``have``: our result;
    for ``not tried`` the reason. ``verdict``: one of ``VERDICTS``. ``section``: anchor
    on the page of results. ``scale``: the scale of the sweep that gave the numbers.
    ``command``: the command that repeats them, if it is not the sweep of the file.
    ``minutes``: duration on two cores, 0 if unknown. ``seeds``: number of seeds.
    """

    item: str
    says: str
    have: str
    verdict: str
    section: str = ""
    scale: str = ""
    command: str = ""
    minutes: float = 0.0
    seeds: int = 0

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"verdict = {self.verdict!r}: choose from {', '.join(VERDICTS)}")
        for name in ("item", "says", "have"):
            if not getattr(self, name):
                raise ValueError(f"{name}: is empty: give it a text")
        if self.verdict != NOT_TRIED and not (self.section and self.minutes and self.seeds):
            raise ValueError(
                f"{self.item}: add section, minutes and seeds, or set verdict = 'not tried'"
            )


@dataclass(frozen=True)
class Paper:
    """A folder of experiments. ``page``: the page of its results, next to the index."""

    title: str
    page: str
    claims: tuple[Claim, ...]


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


def index(root: Path) -> str:
    """Return the text of the index."""
    known = papers(root)
    all_claims = [claim for paper in known for claim in paper.claims]
    counts = ", ".join(
        f"{sum(claim.verdict == verdict for claim in all_claims)} {verdict}" for verdict in VERDICTS
    )
    lines = [
        "# Results",
        "",
        START,
        "",
        "One row per claim: what the paper says, what we found, and the command that repeats it. "
        f"The verdict links to the numbers. Of {len(all_claims)} claims: {counts}.",
        "",
        "Minutes are rough, for two cores. One seed proves nothing. *(ours)*: not claimed by the "
        "paper itself. With `--data DIR` a command reads `DIR/heart` and so on "
        "([which files](../tasks.md)); without it, `ylecun/mnist` and the like come from the hub. "
        "`make reproduce PAPER=superfed SCALE=small DATA=DIR` repeats a paper at a small scale.",
        "",
        "Jobs that compare methods: [contests on natural federations](natural-contests.md), "
        "[many small sites](many-sites.md), where federation pays, "
        "[two classes per client](two-classes.md), where it does not, "
        "[personal methods by default](personal-forms.md), "
        "[ten natural tables](natural-tables.md).",
        "",
        READING,
    ]
    for paper in known:
        lines += ["", f"## {paper.title}", "", f"[All numbers]({paper.page})", ""]
        lines += [
            "| | the paper says | we found | verdict | command | minutes | seeds |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
        lines += [_row(claim, paper.page) for claim in paper.claims if claim.verdict != NOT_TRIED]
        if untried := [claim for claim in paper.claims if claim.verdict == NOT_TRIED]:
            lines += ["", f"Not tried: {'; '.join(map(_untried, untried))}."]
    return "\n".join(lines) + "\n"


def _untried(claim: Claim) -> str:
    """Return item, reason and command of a claim that was not tried."""
    reason = claim.have[0].lower() + claim.have[1:]
    return f"{claim.item}: {reason}" + (f" (`{claim.command}`)" if claim.command else "")


def _row(claim: Claim, page: str) -> str:
    cells = (
        claim.item,
        claim.says,
        claim.have,
        f"[**{claim.verdict}**]({page}#{claim.section})",
        f"`{claim.command}`",
        f"{claim.minutes:g}",
        str(claim.seeds),
    )
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

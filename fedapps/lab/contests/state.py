"""What a contest has decided so far, and the file that keeps it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedapps.errors import UserError
from fedapps.formats import one_line
from fedapps.records.files import write_text

FILE = "contest.json"


def by_reason(reasons: Mapping[str, str]) -> dict[str, list[str]]:
    """Return what is left out for each reason."""
    return {why: [k for k, w in reasons.items() if w == why] for why in reasons.values()}


@dataclass
class State:
    """What a contest has decided so far; it is written after every decision."""

    #: The settings and methods that were asked for, and the settings of all runs.
    asked: dict[str, Any]
    given: dict[str, Any]
    rounds: int
    budget: float
    methods: list[str]
    #: How many folds there may be, and whether all are tested on the same rows, which
    #: the data name.
    folds: int = 5
    same_rows: bool = False
    left_out: dict[str, str] = field(default_factory=dict)
    elapsed: float = 0.0
    #: The leading measure, why it is that, the gains that usually count and that count.
    measure: str = ""
    why: str = ""
    usual: float = 0.0
    delta: float = 0.01
    price: float = 0.0
    #: Of each fold that has ended: the methods that took part, the rates tried with
    #: their gains, the finalists with their rates, the choice and its gain, all gains
    #: on validation samples, the seconds.
    ended: list[dict[str, Any]] = field(default_factory=list)
    #: The mean score of each trial and round on held-out samples, and of how many
    #: clients.
    scores: dict[str, list[float]] = field(default_factory=dict)
    done: bool = False
    costs: dict[str, list[float]] = field(default_factory=dict)
    #: The rounds of a run of trees.
    tree_rounds: int = 0
    start_seconds: float = 0.0
    errors: dict[str, str] = field(default_factory=dict)

    def why_left_out(self) -> list[str]:
        """Return a line for each reason, with the methods that are left out for it."""
        return [
            one_line(f"{', '.join(names)}: {why}", 110)
            for why, names in by_reason(self.left_out).items()
        ]

    def write(self, out: Path) -> None:
        """Write it into the contest's folder."""
        write_text(out / FILE, json.dumps(vars(self), indent=1, ensure_ascii=False) + "\n")


def load_state(out: Path) -> State | None:
    """Return the state of the contest in a folder, or ``None``. Raises ``UserError`` if
    it cannot be read.
    """
    path = out / FILE
    if not path.exists():
        return None
    try:
        return State(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"{path}: cannot be read ({error}): choose another --out, or delete that folder"
        ) from None

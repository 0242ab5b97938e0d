"""Choice of the round that a run is scored with, by the clients' validation samples:
the best one (``keep-best``), and the end of a run that gets no better
(``early-stopping``). Test samples have no part in it.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ArrayRecord

from fedapps.algorithms.common.measures import LEADING, lower_is_better
from fedapps.errors import UserError

#: Key of a round's record: what :func:`scores` returns.
SCORES = "validation-scores"
#: The share of clients at either end that has no say in a comparison of rounds.
TRIMMED = 0.1


def scores(
    metrics: Mapping[Any, Mapping[str, Any]], diverged: Collection[Any] = ()
) -> dict[str, float | None]:
    """Return the leading validation score of each client that reports the one that the
    first of them reports, negative where lower is better; ``None``: it diverged.
    """
    named = [f"validation-{name}" for name in LEADING]
    found = {name for values in metrics.values() for name in values}
    name = next((name for name in named if name in found), "")
    sign = -1.0 if lower_is_better(name) else 1.0
    of = {
        str(client): sign * value
        for client, values in metrics.items()
        if isinstance(value := values.get(name), int | float) and math.isfinite(value)
    }
    return {**of, **dict.fromkeys(map(str, diverged))}


def gain(now: Mapping[str, float | None], before: Mapping[str, float | None]) -> float:
    """Return the mean gain of the clients that were scored in both rounds, without a
    tenth of them at either end (of three or more at least one): one that lies or
    diverges does not decide. A client that diverges loses more than any other.
    """

    def of(client: str) -> float:
        a, b = (-math.inf if s is None else s for s in (now[client], before[client]))
        return 0.0 if a == b else a - b

    gains = sorted(of(client) for client in now.keys() & before.keys())
    cut = math.ceil(TRIMMED * len(gains)) if len(gains) > 2 else 0
    kept = gains[cut : len(gains) - cut]
    # of both infinities, which two halves that diverge could bring, the loss counts
    return -math.inf if -math.inf in kept else sum(kept) / len(kept) if kept else 0.0


@dataclass
class Best:
    """The best evaluation so far: no later one has a positive :func:`gain` over it. A
    round whose model most clients could not score is worse than any other.

    ``keep``: the run is scored with it, instead of with its last evaluation.
    ``patience``: evaluations in a row that are not better, after which the run ends; 0:
    any number. ``setting``: what gives clients validation samples.
    """

    keep: bool = False
    patience: int = 0
    setting: str = "data.validation"
    round: int = 0
    scores: Mapping[str, float | None] = field(default_factory=dict)
    usable: bool = False
    waited: int = 0
    #: The model of the best round, and the tables of its evaluation by file name.
    arrays: ArrayRecord = field(default_factory=ArrayRecord)
    tables: dict[str, str] = field(default_factory=dict)
    #: The best round when the last checkpoint was written.
    at_checkpoint: int = 0

    @property
    def compares(self) -> bool:
        """Whether rounds are compared."""
        return self.keep or self.patience > 0

    def note(self, row: Mapping[str, Any]) -> bool:
        """Take the record of a round; return whether its evaluation is the one that the
        run is scored with so far.

        Raises ``UserError`` if no client of the first evaluation has validation
        samples.
        """
        if "evaluate" not in row:
            return False
        if not self.compares:
            return True
        found, usable = row.get(SCORES, {}), not row.get("unusable")
        if not found and not self.round:
            raise UserError(
                f"{'keep-best' if self.keep else 'early-stopping'}: no client reported a score on "
                f"validation samples: set {self.setting}, to 0.2 say"
            )
        if usable == self.usable:
            better = not self.round or gain(found, self.scores) > 0
        else:
            better = bool(found) and (usable or not self.round)
        if better:
            self.round, self.scores, self.usable, self.waited = row["round"], found, usable, 0
        else:
            self.waited += 1
        return better or not self.keep

    @property
    def exhausted(self) -> bool:
        """Whether the run ends here."""
        return bool(self.patience) and self.waited >= self.patience

    @property
    def kept_rounds(self) -> list[int]:
        """The rounds of which clients must keep what they store."""
        return sorted({self.round, self.at_checkpoint}) if self.keep else []

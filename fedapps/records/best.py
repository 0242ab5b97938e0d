"""Choice of the round that a run is scored with, by the clients' validation samples:
the best one (``keep-best``), and the end of a run that gets no better
(``early-stopping``). Test samples have no part in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ArrayRecord

from fedapps.algorithms.common.measures import LEADING, lower_is_better
from fedapps.errors import UserError

#: Measures that rounds are compared by: the first that clients report.
MEASURES = tuple(f"validation-{name}-mean" for name in LEADING)


@dataclass
class Best:
    """The best evaluation so far: the mean over clients of their leading validation
    score. Of equal ones the first counts. A round in which a client diverged, or whose
    model most clients could not score, is worse than any other.

    ``keep``: the run is scored with it, instead of with its last evaluation.
    ``patience``: evaluations in a row that are not better, after which the run ends; 0:
    any number. ``setting``: what gives clients validation samples.
    """

    keep: bool = False
    patience: int = 0
    setting: str = "data.validation"
    round: int = 0
    rank: tuple[bool, float] = (False, 0.0)
    waited: int = 0
    #: The model of the best round, and the tables of its evaluation by file name.
    arrays: ArrayRecord = field(default_factory=ArrayRecord)
    tables: dict[str, str] = field(default_factory=dict)
    #: The best round when the last checkpoint was written.
    at_checkpoint: int = 0

    def note(self, row: Mapping[str, Any]) -> bool:
        """Take the record of a round; return whether its evaluation is the one that the
        run is scored with so far.

        Raises ``UserError`` if no client of the first evaluation has validation
        samples.
        """
        if "evaluate" not in row:
            return False
        if not self.keep and not self.patience:
            return True
        name = next((name for name in MEASURES if name in row["evaluate"]), None)
        if name is None and not self.round:
            raise UserError(
                f"{'keep-best' if self.keep else 'early-stopping'}: no client reported a score on "
                f"validation samples: set {self.setting}, to 0.2 say"
            )
        score = row["evaluate"][name] if name else 0.0
        # the mean of a round in which clients diverged lacks the worst of them
        sound = not row.get("diverged") and not row.get("unusable")
        rank = (sound, -score if name and lower_is_better(name) else score)
        better = name is not None and (not self.round or rank > self.rank)
        if better:
            self.round, self.rank, self.waited = row["round"], rank, 0
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

"""Observers of a run: what goes on beside its rounds. Each has a part at the beginning,
after every round, and at the end, however the run ends.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # reports import observers and need no Flower
    from flwr.app import ArrayRecord

    from fedapps.strategies.base.rounds import Round


@dataclass(frozen=True)
class Ending:
    """How a run ended. ``status``: completed, interrupted or failed. ``arrays``: its
    final model, if it has one. ``error``: what ended it, if something did.
    ``resumable``: whether a resumed run can go on from the state at the end, or must
    know that there is nothing to go on with.
    """

    status: str
    arrays: "ArrayRecord | None" = None
    error: BaseException | None = None
    resumable: bool = False

    @property
    def reason(self) -> str:
        """Why the run failed, or ""."""
        return f"{type(self.error).__name__}: {self.error}" if self.status == "failed" else ""


class Observer:
    """Base of observers, which do nothing by themselves."""

    def begin(self) -> None:
        """Do what is due before the first round."""

    def __call__(self, now: "Round") -> bool | None:
        """Do what is due after a round; return whether to stop the run."""
        return None

    def end(self, ending: Ending) -> None:
        """Do what is due at the end. Raises ``OSError`` if a file cannot be written."""

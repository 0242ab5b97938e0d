"""What the regression tasks share: the numbers to predict, as they are read, and the
scale in which models learn them.

A model learns ``(y - center) / scale``, with numbers that are the same for all clients:
its outputs then mean the same everywhere. A standardisation of each client's own would
spoil that: the clients' models would agree on deviations from different means, in
different units. The numbers are given in the settings or, ``sums``, follow from n, m
and S of each client's training targets (``algorithms.common.target_errors``), which is
what a real federation would have to send for them. What a model predicts is ``center +
scale * output``.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedapps.algorithms.common.target_errors import CHANNELS, error_sums, pooled
from fedapps.clients.base.data import ArrayData
from fedapps.data.columns import Floats
from fedapps.errors import UserError
from fedapps.strategies.base.reply_validation import LONGEST_METRIC
from fedapps.tasks.options import SUMS, RegressionOptions, numbers_in

if TYPE_CHECKING:  # trees on tables need no PyTorch
    from fedapps.clients.base.evaluation import Objective

#: The task's name, and the net that ``auto`` stands for where a sample is a vector.
NAME, LINEAR = "regression", "linear"
#: So many targets have sums that a reply may hold.
MOST = LONGEST_METRIC // CHANNELS


@dataclass(frozen=True)
class TargetScale:
    """``center`` and ``scale`` (targets,)."""

    center: Floats
    scale: Floats

    @classmethod
    def of_clients(cls, targets: Iterable[Floats]) -> "TargetScale":
        """Return mean and deviation over all clients, given the training targets (n,
        targets) of each. Raises ``UserError``.
        """
        parts = [(len(y), error_sums(y, y)) for y in targets]
        count, sums = pooled(parts)
        constant = np.flatnonzero(~(sums[:, 3] > 0))
        if len(constant):
            raise UserError(
                f"task = 'regression': target {constant[0] + 1} has one and the same value: there "
                "is nothing to predict"
            )
        return cls(sums[:, 2], np.sqrt(sums[:, 3] / count))

    def of(self, y: Floats) -> NDArray[np.float32]:
        """Return targets as the model learns them."""
        return np.asarray((y - self.center) / self.scale, np.float32)

    def of_data(self, data: ArrayData) -> ArrayData:
        """Return a client's samples with targets as the model learns them; a split that
        is used in two places stays shared.
        """
        parts = (data.train, data.validation, data.test)
        moved = {id(part): replace(part, y=self.of(part.y)) for part in parts}
        return ArrayData(*(moved[id(part)] for part in parts))


class Targets(ABC):
    """Mixed into the tasks whose samples have numbers to predict. Subclasses say how
    many, and give those of each client.
    """

    options: Any
    context: Any

    @property
    @abstractmethod
    def num_outputs(self) -> int:
        """The number of targets."""

    @abstractmethod
    def target_parts(self, client: int, num_clients: int) -> tuple[Floats, Floats, Floats]:
        """Return a client's targets (n, targets) to train on, to validate with, to be
        scored on.

        None to validate with where those to train on stand in.
        """

    @property
    def scale_found(self) -> str:
        """How the scale of the targets follows from the clients' data, in words; "" if
        it does not.
        """
        return (
            "center and scale of the targets (regression.center, regression.scale), from sums over "
            "the clients"
            if SUMS in (self.options.center, self.options.scale)
            else ""
        )

    @cached_property
    def target_scale(self) -> TargetScale:
        """The scale of the run's targets. Raises ``UserError``."""
        o: RegressionOptions = self.options
        found = None
        if self.scale_found:
            clients = self.context.num_clients
            found = TargetScale.of_clients(
                self.target_parts(client, clients)[0] for client in range(clients)
            )
        given = {
            name: getattr(found, name) if text == SUMS else self._given(name, text)
            for name, text in (("center", o.center), ("scale", o.scale))
        }
        return TargetScale(**given)

    def _given(self, name: str, text: str) -> Floats:
        values = numbers_in(text)
        if len(values) not in (1, self.num_outputs):
            raise UserError(
                f"regression.{name} = {text!r}: has {len(values)} numbers for {self.num_outputs} "
                "targets: give one or as many"
            )
        return np.broadcast_to(np.array(values), self.num_outputs).copy()

    @property
    def objective(self) -> "Objective":
        """The loss of the settings, and the scores in the targets' units. Raises
        ``UserError`` for more than it can report of.
        """
        if self.num_outputs > MOST:
            raise UserError(
                f"task = 'regression': {self.num_outputs} targets are more than {MOST}: name fewer"
            )
        from fedapps.clients.base.regression import regression

        found = self.target_scale
        return regression(self.options.loss, found.scale.tolist(), float(found.center[0]))

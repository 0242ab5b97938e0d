"""Numbers to predict from arrays, images or columns of numbers (``data.source``): what
task ``regression`` is unless it has a table.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from clients.base.data import ClientData, Split
from fedapps.data import partition as partitions
from fedapps.data.flower_partitioners import goes_by_classes
from fedapps.data.samples import Samples
from fedapps.data.table_columns import Floats
from fedapps.errors import UserError
from fedapps.models.image_nets import net_for
from fedapps.notes import logger
from fedapps.tasks.classification import Classification
from fedapps.tasks.context import RunContext
from fedapps.tasks.targets import LINEAR, NAME, Targets

#: Ways to deal samples that go by classes.
BY_CLASS = ("pathological", "dirichlet", "dirichlet-clients", "sorted-share")


class ArrayRegression(Targets, Classification):
    """Prediction of a column, or of arrays of one size; samples are read, dealt and
    scaled as those of :class:`Classification`.
    """

    name = NAME

    def __init__(self, options: Any, context: RunContext) -> None:
        Classification.__init__(self, options, context)
        d = context.data
        for key, chosen, usual in (
            ("noise", d.noise, "none"),
            ("class-weights", d.class_weights, False),
            ("synthetic", d.synthetic, ""),
        ):
            if chosen != usual:
                raise UserError(
                    f"data.{key} = {chosen!r}: is for samples with a class, and regression "
                    f"predicts numbers: leave it {usual!r}"
                )
        if d.partition in BY_CLASS or goes_by_classes(d):
            raise UserError(
                f"data.partition = {d.partition!r}: deals samples by class, and regression has "
                "none: choose iid, natural "
                "(data.natural-id), or one of flwr:... that goes by size or by another column"
            )

    def read(self) -> Samples:
        """Read the whole data set, with targets."""
        return partitions.load_samples(self.context.data, targets=True)

    @property
    def targets(self) -> Floats:
        """The numbers to predict (N, targets)."""
        found = self.samples.targets
        assert found is not None
        return found

    @property
    def num_outputs(self) -> int:
        """The number of targets."""
        return int(self.targets.shape[1])

    @property
    def from_clients(self) -> str:
        """What is made from the clients' data before the first round."""
        return " and ".join(filter(None, (super().from_clients, self.scale_found)))

    def target_parts(self, client: int, num_clients: int) -> tuple[Floats, Floats, Floats]:
        """Return a client's targets to train on, to validate with, to be scored on."""
        train, validation, test = (self.targets[rows] for rows in self.split(client, num_clients))
        return train, validation, test

    def check(self, num_clients: int) -> None:
        """Load and partition the data and build the model."""
        self.test_parts(num_clients)
        self.validation_parts(num_clients)
        for line in self.remarks(num_clients):
            logger.warning("%s", line)
        _ = self.objective
        self.initial_arrays()

    @property
    def groups(self) -> None:
        """None: groups are compared by their classes."""

    @property
    def usual_net(self) -> str:
        """The net that ``auto`` stands for."""
        return LINEAR if self.image_shape[:2] == (1, 1) else net_for(self.image_shape)

    def prepare(self, client: int, num_clients: int) -> ClientData:
        """Return a client's training, validation and test samples, with targets as the
        model learns them.
        """
        rows = self.split(client, num_clients)
        scale = (
            self.common_scale(num_clients) if self.standardise == "sums" else self.scale_of(rows[0])
        )

        def part(mine: NDArray[np.int64]) -> Split:
            y = torch.from_numpy(self.target_scale.of(self.targets[mine]))
            return Split(partitions.tensors(self.samples, mine, scale).x, y)

        train = part(rows[0])
        return ClientData(train, part(rows[1]) if len(rows[1]) else train, part(rows[2]))

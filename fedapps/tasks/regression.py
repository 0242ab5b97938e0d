"""Task ``regression``: numbers to predict, from the rows of a table, from arrays or
from images. They are read and dealt as those of task ``classification``, but for what
goes by classes.

How targets are scaled, and why so: ``targets.py``. Nobody but a site sees its own rows:
the scale of its targets is in the settings (``regression.center``,
``regression.scale``), the same for all sites, and inputs are scaled by each client's
own training rows.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapps.clients.base.data import ClientData
from fedapps.data import generated_tables
from fedapps.data.arrays import targets_of
from fedapps.data.columns import Floats
from fedapps.data.flower_partitioners import goes_by_classes
from fedapps.data.generated_tables import DIABETES
from fedapps.data.images import read_samples
from fedapps.data.source import GENERATED, Columns, Samples
from fedapps.errors import UserError
from fedapps.tasks.context import RunContext
from fedapps.tasks.options import SUMS
from fedapps.tasks.site_data import SiteRows
from fedapps.tasks.tabular import Rows, check_without_classes
from fedapps.tasks.targets import LINEAR, NAME, Targets

#: Ways to deal samples that go by classes.
BY_CLASS = ("pathological", "dirichlet", "dirichlet-clients", "sorted-share")


class Regression(Targets, Rows):
    """Prediction of one or several columns, or of arrays of one size."""

    name = NAME
    bundled = (GENERATED, DIABETES)

    def __init__(self, options: Any, context: RunContext) -> None:
        Rows.__init__(self, options, context)
        d = context.data
        check_without_classes(d, "regression predicts numbers")
        if d.partition in BY_CLASS or goes_by_classes(d):
            raise UserError(
                f"data.partition = {d.partition!r}: deals samples by class, and regression has "
                "none: choose iid, natural "
                "(data.natural-id), or one of flwr:... that goes by size or by another column"
            )

    def read(self) -> Samples:
        """Read the whole data set, with targets; the bundled ones have ``num-clients``
        clients.
        """
        d, clients = self.context.data, self.context.num_clients or 1
        if d.source == GENERATED:
            columns = generated_tables.numbers(clients)
            return generated_tables.samples_of(columns, d, "kind", "target", True)
        if d.source == DIABETES:
            columns = generated_tables.diabetes(clients)
            return generated_tables.samples_of(columns, d, "sex", "target", True)
        return read_samples(d, targets=True)

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

    @property
    def groups(self) -> None:
        """None: groups are compared by their classes."""

    @property
    def usual_net(self) -> str:
        """The net that ``auto`` stands for."""
        return LINEAR if self.image_shape[:2] == (1, 1) else super().usual_net

    def prepare(self, client: Any, num_clients: int) -> ClientData:
        """Return a client's training, validation and test samples, with targets as the
        model learns them.
        """
        rows = self.split(client, num_clients)
        data = self.parts(rows, self.scale_for(rows[0], num_clients))
        return self.target_scale.of_data(data).tensors()


class SiteRegression(SiteRows, Regression):
    """Prediction of columns of one site's rows; ``source`` is "" on the server."""

    def __init__(self, options: Any, context: RunContext, source: str) -> None:
        SiteRows.__init__(self, options, context, source)
        for key in ("center", "scale"):
            if getattr(options, key) == SUMS:
                raise UserError(
                    f"regression.{key} = {SUMS!r}: sites with data of their own send no sums of "
                    "them: give a number (regression.center and regression.scale, the same at all "
                    "sites)"
                )

    @property
    def num_outputs(self) -> int:
        """The number of targets, from the settings."""
        return len(self.labels)

    def predicted(self, x: NDArray[np.float32], columns: Columns) -> Samples:
        """Return the samples with the numbers to predict."""
        y = np.concatenate([targets_of(self.frame, self.given, n) for n in self.labels], 1)
        return Samples(x, np.zeros(len(y), np.int64), 1, numbers=columns, targets=y)

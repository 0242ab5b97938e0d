"""Task ``tabular``: classification of the rows of a table with natural clients (a
hospital, a bank's region).

Of two classes the model has one logit (``clients.base.evaluation.BINARY``);
``logistic`` with 15 features has the 16 parameters of the AAggFF chapter, whose two
tables, Heart (4 hospitals) and Berka (7 bank regions), are recognised by their columns
(``data.preset``).

Only the layout (columns and the values of categories) is shared by all clients. By
default inputs are scaled with each client's own training rows.

Sources: Hahn, "Algorithms for Collaborative Machine Learning under Statistical
Heterogeneity", dissertation, UNIST 2024, arXiv 2408.00050, Chapter III. Heart as in
Ogier du Terrail, Ayed, Cyffers, Grimberg, He, Loeb, ..., Andreux (24 authors), "FLamby:
Datasets and Benchmarks for Cross-Silo Federated Learning in Realistic Healthcare
Settings", NeurIPS 2022, arXiv 2210.04620.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedapps.clients.base.data import ArrayData
from fedapps.data import generated_tables, partition as partitions
from fedapps.data.options import DataOptions
from fedapps.data.source import GENERATED, Samples
from fedapps.errors import UserError
from fedapps.tasks.base import NetByShape
from fedapps.tasks.classification import Classification, ThreeParts
from fedapps.tasks.context import RunContext

if TYPE_CHECKING:  # trees on tables need no PyTorch
    from fedapps.clients.base.evaluation import Objective
    from fedapps.data.scaling import Scale


def check_without_classes(data: DataOptions, but: str) -> None:
    """Raise ``UserError`` for options of samples with a class; ``but``: what the task
    has instead.
    """
    for key, chosen, usual in (
        ("noise", data.noise, "none"),
        ("class-weights", data.class_weights, False),
        ("synthetic", data.synthetic, ""),
    ):
        if chosen != usual:
            raise UserError(
                f"data.{key} = {chosen!r}: is for samples with a class, and {but}: leave it "
                f"{usual!r}"
            )


class Rows(Classification):
    """Base of the tasks on tables: a client's rows are split with its share of every
    class, and can be had as arrays.
    """

    #: The sources that have any number of clients.
    bundled: tuple[str, ...] = (GENERATED,)

    def __init__(self, options: Any, context: RunContext) -> None:
        NetByShape.__init__(self, options, context)

    def natural_clients(self) -> int:
        """Return the number of clients in the data; 0 for those that have any
        number.
        """
        return 0 if self.context.data.source in self.bundled else super().natural_clients()

    def split(self, client: int, num_clients: int) -> ThreeParts:
        """Return the rows of a client's training, validation (empty if it is
        the training set) and test sets.
        """
        parts = self.test_parts(num_clients), self.validation_parts(num_clients)
        if parts != (None, None) or not self.is_table:
            return super().split(client, num_clients)
        return self.parts_of(self.partition(num_clients)[client], client)

    @property
    def is_table(self) -> bool:
        """Whether samples are rows of numbers and categories."""
        return bool(self.samples.numbers and self.samples.numbers.used)

    def parts(self, rows: ThreeParts, scale: "Scale | None") -> ArrayData:
        """Return these samples as arrays in the shape that nets take: a row of a table
        is (features,).
        """
        found = super().parts(rows, scale)
        return found.vectors() if self.is_table else found

    def parts_of(self, mine: NDArray[np.int64], client_id: int | str) -> ThreeParts:
        """Split the rows of a client."""
        c, s = self.context, self.samples
        if c.data.folds:
            seed, persons = c.split_seed, s.persons
            rows = partitions.fold_rows(mine, c.data, client_id, seed, s.labels, persons)
        else:
            rows = partitions.stratified_rows(s, mine, client_id, c.split_seed, c.data.validation)
        return partitions.scored(rows, c.data, self.samples.persons)

    @property
    def num_features(self) -> int:
        """The number of features, those of categories counted one by one."""
        return int(np.prod(self.image_shape))

    def arrays(self, client_id: int | str, num_clients: int, scale: bool = True) -> ArrayData:
        """Return the rows of a client for a method that needs no tensors.

        Without ``scale`` values are as they are in the table, NaN where one is missing.
        """
        client: Any = client_id
        rows = self.split(client, num_clients)
        found = self.scale_for(rows[0], num_clients) if scale else None
        data = self.parts(rows, found).vectors()
        if self.context.data.test_rows:
            data = replace(data, test=replace(data.test, rows=True))
        return data


class Tabular(Rows):
    """Classification of a table's rows."""

    name = "tabular"

    def read(self) -> Samples:
        """Read the table; a generated one has ``num-clients`` clients."""
        d = self.context.data
        if d.source != GENERATED:
            return super().read()
        columns = generated_tables.classes(self.context.num_clients or 1)
        return generated_tables.samples_of(columns, d, "kind", "label")

    @property
    def num_outputs(self) -> int:
        """The number of model outputs: one logit for two classes."""
        classes = self.samples.num_classes
        return 1 if classes == 2 else classes

    @property
    def objective(self) -> "Objective":
        """The loss and the scores."""
        from fedapps.clients.base.evaluation import BINARY, CLASSIFICATION

        if not self.context.data.class_weights:
            return BINARY if self.num_outputs == 1 else CLASSIFICATION
        if self.num_outputs == 1:
            raise UserError(
                "data.class-weights = true: task 'tabular' has one logit for two classes: choose "
                "task = 'classification'"
            )
        return super().objective

    @property
    def standardise(self) -> str:
        """How inputs are scaled: by default with each client's own training rows."""
        chosen = self.context.data.standardise
        return "client" if chosen == "auto" else chosen

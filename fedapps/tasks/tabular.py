"""Task ``tabular``: binary classification of the rows of a table with natural clients
(a hospital, a bank's region).

The model has one logit (``clients.base.evaluation.BINARY``); ``logistic`` with 15
features has the 16 parameters of the AAggFF chapter, whose two tables, Heart (4
hospitals) and Berka (7 bank regions), are recognised by their columns.

Only the layout (columns and the values of categories) is shared by all clients. All
preprocessing is local, based on the client's own training rows: missing values are
replaced by the column mean, and numeric columns are standardised to mean 0 and standard
deviation 1. A column that is missing or constant in a client's training rows is set to
0.

Sources: Hahn, "Algorithms for Collaborative Machine Learning under Statistical
Heterogeneity", dissertation, UNIST 2024, arXiv 2408.00050, Chapter III. Heart as in
Ogier du Terrail, Ayed, Cyffers, Grimberg, He, Loeb, ..., Andreux (24 authors), "FLamby:
Datasets and Benchmarks for Cross-Silo Federated Learning in Realistic Healthcare
Settings", NeurIPS 2022, arXiv 2210.04620.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from algorithms.common.partitioners import stratified
from algorithms.common.seeds import generator
from algorithms.fairness.groups import Groups
from clients.base.data import ArrayData, ArraySplit, ClientData
from fedapps.data.sample_groups import grouping_of
from fedapps.errors import UserError
from fedapps.tasks.base import NetByShape, dealt
from fedapps.tasks.context import RunContext
from fedapps.tasks.options import TableOptions
from fedapps.tasks.scaling import Numeric, columns_of, filled
from fedapps.tasks.tables import Table, generated_table, read_table, some

if TYPE_CHECKING:  # trees on tables need no PyTorch
    from clients.base.evaluation import Objective


class Tabular(NetByShape):
    """Binary classification with natural clients, in sorted order; if ``num-clients``
    is smaller, the first ones are used.
    """

    name = "tabular"

    def __init__(self, options: Any, context: RunContext) -> None:
        super().__init__(options, context)
        self.options: TableOptions = options
        self.grouping = grouping_of(context.data)
        self._arrays: dict[tuple[int, bool], ArrayData] = {}

    @property
    def num_outputs(self) -> int:
        """The number of model outputs: one logit."""
        return 1

    @property
    def objective(self) -> "Objective":
        """The loss and the scores of one logit."""
        from clients.base.evaluation import BINARY

        return BINARY

    @property
    def from_clients(self) -> str:
        """The values found in categorical columns become features; those of the presets
        are published with the data sets.
        """
        asked, table = self.options.source and self.options.categorical, self.options.table
        return (
            f"the values of the columns {table}.categorical, found in the rows of all clients"
            if asked
            else ""
        )

    def table(self, num_clients: int) -> Table:
        """Return the table; a generated one has ``num_clients`` clients."""
        o = self.options
        return (
            read_table(o, self.grouping)
            if o.source
            else generated_table(o, num_clients, self.grouping)
        )

    @property
    def groups(self) -> Groups | None:
        """The groups of the column ``data.group``."""
        if not self.grouping.column:
            return None
        return Groups(self.table(self.context.num_clients or 1).groups[0].names, 2)

    def natural_clients(self) -> int:
        """Return the number of clients in the table; 0 for a generated one, which has
        any number.
        """
        return len(read_table(self.options, self.grouping).clients) if self.options.source else 0

    def check(self, num_clients: int) -> None:
        """Read the table, split and scale all clients' rows and build the model."""
        table = self.table(num_clients)
        if num_clients > len(table.clients):
            where = self.options.source or "the generated table"
            raise UserError(
                f"num-clients = {num_clients}, but {where} has {len(table.clients)} clients "
                f"({some(table.clients)}): "
                f"choose at most {len(table.clients)} (--nodes)"
            )
        labels = np.concatenate(table.y[:num_clients])
        if labels.ndim == 1 and labels.min() == labels.max():
            raise UserError(
                f"{self.options.table}.label: all rows of the clients have label {labels[0]}: "
                "there is nothing to predict"
            )
        for client in range(num_clients):
            self.client_data(client, num_clients)
        self.initial_arrays()

    @property
    def num_features(self) -> int:
        """The number of features, dummies counted one by one."""
        return len(self.table(1).features)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """A row is a vector."""
        return 1, 1, self.num_features

    def prepare(self, client: int | str, num_clients: int) -> ClientData:
        """Return the rows of a client as tensors."""
        return self.arrays(client, num_clients).tensors()

    def arrays(self, client_id: int | str, num_clients: int, scale: bool = True) -> ArrayData:
        """Return the rows of a client, split and scaled, for a method that needs no
        tensors.

        Without ``scale`` values are as they are in the table, NaN where one is missing.
        """
        client = dealt(client_id, num_clients)
        table, o = self.table(num_clients), self.options
        if client >= len(table.clients):
            raise UserError(
                f"client {client}: {o.source} has {len(table.clients)} clients: choose at most so "
                "many nodes"
            )
        if (client, scale) not in self._arrays:
            common = self.common(num_clients) if scale else None
            rng = generator(self.context.seed, "split", client)
            self._arrays[client, scale] = split_rows(table, client, o, rng, scale, common)
        return self._arrays[client, scale]

    def common(self, num_clients: int) -> Numeric | None:
        """Return what all clients' numbers are scaled by; None where each one's own
        training rows say so.
        """
        return None


def split_rows(
    table: Table,
    place: int,
    options: TableOptions,
    rng: np.random.Generator,
    scale: bool = True,
    common: Numeric | None = None,
) -> ArrayData:
    """Return the rows of the client at position ``place``, split at random and, unless
    not ``scale``, filled and scaled.

    ``common``: by what all clients are, instead of by its own training rows. Raises
    ``UserError`` if they are too few.
    """
    x, y = table.x[place], table.y[place]
    needed = 3 if options.validation else 2
    who, remedy = f"client {table.clients[place]!r} has", f"name it in {options.table}.drop-clients"
    if y.ndim > 1:  # numbers: a row is like any other
        if len(y) < needed:
            raise UserError(
                f"{who} {len(y)} rows, but each of the {needed} parts of its data needs one: "
                f"{remedy}"
            )
        rows = stratified(np.zeros(len(y), np.int64), rng, options.test, options.validation)
    else:
        ones = int(y.sum())
        if len(y) < needed or any(0 < count < needed for count in (ones, len(y) - ones)):
            raise UserError(
                f"{who} {len(y) - ones} rows of label 0 and {ones} of label 1, but each part of "
                f"its data needs one row of every label that the client has: {remedy}"
            )
        rows = stratified(y, rng, options.test, options.validation)
    with np.errstate(over="ignore"):  # numbers beyond float32
        inputs = (filled(x, table.scaled, common or columns_of(x[rows[0]])) if scale else x).astype(
            np.float32
        )
    group = table.groups[place].members if table.groups else None
    train, validation, test = (
        ArraySplit(inputs[part], y[part], None if group is None else group[part]) for part in rows
    )
    return ArrayData(train, validation if options.validation else train, test)

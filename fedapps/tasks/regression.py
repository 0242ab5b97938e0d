"""Task ``regression``: numbers to predict, from the rows of a table with natural
clients, or from arrays.

``regression.source`` is a table, read as task ``tabular`` reads it (columns of
categories, missing values and the scale of its inputs likewise); ``data.source`` are
arrays, images or plain columns of numbers, read and dealt as task ``classification``
does, but for what goes by classes. Without either: a generated table, in which every
client has slopes of its own. ``diabetes`` is the data set that scikit-learn brings,
whose 442 patients are dealt to the clients at random.

How targets are scaled, and why so: ``targets.py``. Source of the diabetes data: Efron,
Hastie, Johnstone, Tibshirani, "Least Angle Regression", The Annals of Statistics 32(2),
2004, arXiv math/0406456.
"""

import importlib.util
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from algorithms.common.seeds import generator
from clients.base.data import ClientData
from fedapps.data.table_columns import Floats
from fedapps.errors import UserError
from fedapps.tasks.context import RunContext
from fedapps.tasks.options import RegressionOptions
from fedapps.tasks.scaling import Numeric, columns_of
from fedapps.tasks.tables import Columns, Table, encode, generated_columns, read_table
from fedapps.tasks.tabular import Tabular
from fedapps.tasks.targets import LINEAR, NAME, Targets, read_targets

DIABETES = "diabetes"


class TableTargets(Targets, Tabular):
    """Base of the regression tasks on tables."""

    name = NAME

    @property
    def usual_net(self) -> str:
        """The net that ``auto`` stands for."""
        return LINEAR

    def target_parts(self, client: int, num_clients: int) -> tuple[Floats, Floats, Floats]:
        """Return a client's targets to train on, to validate with, to be scored on."""
        data = self.arrays(client, num_clients)
        held_back = data.validation.y[: 0 if data.validation is data.train else None]
        return data.train.y, held_back, data.test.y

    def prepare(self, client: int | str, num_clients: int) -> ClientData:
        """Return the rows of a client as tensors, with targets as the model learns
        them.
        """
        return self.target_scale.of_data(self.arrays(client, num_clients)).tensors()


class TableRegression(TableTargets):
    """Prediction of one or several columns of a table; clients and inputs are those of
    :class:`Tabular`.
    """

    def __init__(self, options: Any, context: RunContext) -> None:
        Tabular.__init__(self, options, context)
        self._common: Numeric | None = None

    @property
    def num_outputs(self) -> int:
        """The number of targets."""
        return int(self.table(self.context.num_clients or 1).y[0].shape[1])

    @property
    def from_clients(self) -> str:
        """What is made from the clients' data before the first round."""
        inputs = (
            "mean and deviation of the inputs (regression.standardise = 'sums'), from sums "
            "over the clients"
        )
        found = (
            super().from_clients,
            inputs if self.options.standardise == "sums" else "",
            self.scale_found,
        )
        return " and ".join(filter(None, found))

    def table(self, num_clients: int) -> Table:
        """Return the table; a generated one, and the diabetes data, have
        ``num_clients`` clients.
        """
        if self.options.source in ("", DIABETES):
            return bundled_table(self.options, num_clients)
        return read_table(self.options, read=read_targets)

    def natural_clients(self) -> int:
        """Return the number of clients in the table; 0 for those that have any
        number.
        """
        return 0 if self.options.source in ("", DIABETES) else len(self.table(0).clients)

    def common(self, num_clients: int) -> Numeric | None:
        """Return mean and deviation of the inputs over all clients' training rows,
        unless each client is to use its own.
        """
        if self.options.standardise == "client":
            return None
        if self._common is None:
            rows = [
                self.arrays(client, num_clients, scale=False).train.x
                for client in range(num_clients)
            ]
            self._common = columns_of(np.concatenate(rows).astype(np.float64))
        return self._common

    def input_scale(self, num_clients: int) -> dict[str, list[Any]]:
        """Return names, mean and deviation of the features, for whoever uses the model;
        {} if each client has its own.
        """
        if (common := self.common(num_clients)) is None:
            return {}
        table = self.table(num_clients)
        mean, deviation = (
            np.where(table.scaled, common.mean, 0.0),
            np.where(table.scaled & common.varies, common.deviation, 1.0),
        )
        return {
            "features": list(table.features),
            "mean": mean.tolist(),
            "deviation": deviation.tolist(),
        }

    def check(self, num_clients: int) -> None:
        """Read the table, split and scale all clients' rows and build the model."""
        super().check(num_clients)
        _ = self.objective


def regression_task(options: Any, context: RunContext) -> Any:
    """Return the task for a table or for arrays. Raises ``UserError`` if both are
    named.
    """
    if context.data.source == "digits":
        return TableRegression(options, context)
    if options.source:
        raise UserError(
            f"regression.source = {options.source!r}: data.source = {context.data.source!r} is "
            "given, too: leave one of them out"
        )
    from fedapps.tasks.array_regression import ArrayRegression

    return ArrayRegression(options, context)


# --- tables that need no file ---------------------------------------------------------


@lru_cache(maxsize=4)
def bundled_table(options: RegressionOptions, num_clients: int) -> Table:
    """Return the generated table, in which client k does not depend on the number of
    clients, or the diabetes data.
    """
    made, category = (diabetes, "sex") if options.source == DIABETES else (generate, "kind")
    options = replace(options, categorical=options.categorical or category)
    return encode(made(num_clients), options, read=read_targets)


def generate(num_clients: int) -> Columns:
    """Return a small synthetic table: 20 to 80 rows a client; to common slopes of
    deviation 1 a client's own of 0.4 are added.
    """
    common = generator(0, "generated regression").normal(size=5)

    def target(x: Floats, kind: NDArray[np.int64], rng: np.random.Generator) -> Columns:
        slopes = common[:4] + rng.normal(scale=0.4, size=4)
        value = x @ slopes + common[4] * (kind == 2) + rng.normal(scale=0.4)
        return {"target": 250.0 + 40.0 * (value + rng.normal(size=len(x)))}

    return generated_columns(num_clients, "generated regression", 4, (20, 80), target)


def diabetes(num_clients: int) -> Columns:
    """Return the 442 patients, dealt at random to so many clients: ten measurements,
    and how far the disease has gone in a year.
    """
    rows = _diabetes_rows()
    if not 1 <= num_clients <= (most := len(rows) // 5):
        raise UserError(
            f"num-clients = {num_clients}: a client needs 5 of the {len(rows)} rows of diabetes: "
            f"choose 1..{most}"
        )
    order = generator(0, "diabetes").permutation(len(rows))
    owner = np.empty(len(rows), np.int64)
    owner[order] = np.arange(len(rows)) % num_clients
    names = ("age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6", "target")
    columns: Columns = {name: rows[:, place] for place, name in enumerate(names)}
    return columns | {"client": np.array([f"client{number:05d}" for number in owner])}


def _diabetes_rows() -> NDArray[np.float64]:
    """Return scikit-learn's table (442, 11), whose last column is the target; the files
    are read as the digits' are.
    """
    spec = importlib.util.find_spec("sklearn")  # finds it without importing it
    assert spec is not None, "scikit-learn is a dependency"
    assert spec.submodule_search_locations is not None
    folder = Path(spec.submodule_search_locations[0]) / "datasets" / "data"
    return np.column_stack(
        [np.loadtxt(folder / f"diabetes_{name}.csv.gz") for name in ("data_raw", "target")]
    )

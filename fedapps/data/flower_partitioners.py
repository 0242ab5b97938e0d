"""Every partitioner of flwr-datasets by its name: ``data.partition =
"flwr:DirichletPartitioner"``, its arguments as text.

``data.partition-arguments`` is the inside of a TOML table: ``alpha = 0.3,
self_balancing = true``. The number of clients is that of the run (``num_partitions``),
except where the partitioner decides it; the seed, where it takes one, follows from the
run's. Samples are shuffled first, as ``FederatedDataset`` does: partitioners that cut a
set into pieces would otherwise cut it in the order of its files.
"""

import inspect
import warnings
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fedapps.algorithms.common.options import nearest
from fedapps.algorithms.common.seeds import derived_seed
from fedapps.data.options import BY_CLIENT, FLOWER, DataOptions
from fedapps.data.source import Indices, Samples
from fedapps.errors import UserError, reason, refuse_first

#: The classes of the samples, for ``partition_by``.
LABEL = "label"
#: Go by a column that has to be named: by the classes they would make a client of each.
BY_COLUMN = ("ContinuousPartitioner", *BY_CLIENT)
#: Partitioners that cannot be used here, with the reason.
OTHERS = {
    "Partitioner": "is the base of the others",
    "IdToSizeFncPartitioner": "takes a function: choose Linear-, Square-, Exponential- "
    "or SizePartitioner",
    "VerticalEvenPartitioner": "deals columns, and clients here have samples with all of them",
    "VerticalSizePartitioner": "deals columns, and clients here have samples with all of them",
}


def column_by(options: DataOptions) -> str:
    """Return the column that the partitioner goes by: the named one, else that of the
    classes; "" for other partitions.

    Raises ``UserError`` if it has to be named.
    """
    if not options.partition.startswith(FLOWER):
        return ""
    named = options.arguments.get("partition_by")
    refuse_first(
        (
            named is None and options.partition.removeprefix(FLOWER) in BY_COLUMN,
            f"data.partition = {options.partition!r}: name a column: data.partition-arguments = "
            "'partition_by = \"...\"'",
        ),
        (
            named is not None and not isinstance(named, str),
            f"data.partition-arguments: partition_by = {named!r}: must be the name of a column, in "
            "quotation marks",
        ),
    )
    return named or LABEL


def goes_by_classes(options: DataOptions) -> bool:
    """Return whether a partitioner goes by what is predicted, and needs that to be a
    class.
    """
    if not options.partition.startswith(FLOWER) or options.partition.endswith(
        "ContinuousPartitioner"
    ):
        return False
    takes = "partition_by" in inspect.signature(_class_of(options)).parameters
    return takes and column_by(options) in (LABEL, options.label)


def number_of_clients(samples: Samples, options: DataOptions) -> int:
    """Return how many clients the partitioner makes; 0 if it makes as many as one asks
    for.
    """
    if "num_partitions" in inspect.signature(_class_of(options)).parameters:
        return 0
    return len(_parts(samples, options, 0, 0))


def dealt(samples: Samples, options: DataOptions, num_clients: int, seed: int) -> list[Indices]:
    """Return the samples of each client, ascending. Raises ``UserError`` if the library
    refuses, or makes another number.
    """
    parts = _parts(samples, options, num_clients, derived_seed(seed, "partition") % 2**32)
    if len(parts) != num_clients:
        raise UserError(
            f"data.partition = {options.partition!r}: makes {len(parts)} clients of "
            f"{options.source}, {num_clients} are asked for: "
            "leave num-clients 0, or change its arguments"
        )
    return parts


def _parts(samples: Samples, options: DataOptions, num_clients: int, seed: int) -> list[Indices]:
    kind, given = _class_of(options), options.arguments
    wanted = inspect.signature(kind).parameters
    takes = [name for name in wanted if name != "num_partitions"]
    known = {"num_partitions": num_clients, "seed": seed, **given, "partition_by": "by"}
    passed = {name: value for name, value in known.items() if name in wanted}
    by = column_by(options)
    refuse_first(
        (
            "num_partitions" in given,
            "data.partition-arguments: num_partitions is the number of clients: set num-clients "
            "(--nodes) instead",
        ),
        *(
            (
                name not in wanted,
                f"data.partition-arguments: {options.partition.removeprefix(FLOWER)} has no "
                f"argument {name!r}: "
                f"{nearest(name, takes)}it has {', '.join(takes) or 'none'}",
            )
            for name in given
        ),
        *(
            (
                name not in passed and parameter.default is parameter.empty,
                f"data.partition = {options.partition!r}: needs {name}: data.partition-arguments = "
                f"'{name} = ...'",
            )
            for name, parameter in wanted.items()
        ),
        (
            samples.by is None and by not in (LABEL, options.label),
            f"data.partition-arguments: partition_by = {by!r}: this task deals by {LABEL!r} only",
        ),
    )
    if "distribution_array" in passed:
        passed["distribution_array"] = np.asarray(passed["distribution_array"])
    rows = np.random.default_rng(seed).permutation(samples.dealt)
    values = samples.labels if samples.by is None else samples.by
    try:
        return partitioned(kind(**passed), values, rows)
    except (
        ValueError,
        TypeError,
        ArithmeticError,
        LookupError,
        AttributeError,
        AssertionError,
    ) as error:
        raise UserError(
            f"data.partition = {options.partition!r}: flwr-datasets refuses: {reason(error)}"
        ) from error


def partitioned(partitioner: Any, values: npt.NDArray[Any], rows: Indices) -> list[Indices]:
    """Return the rows of each client as a partitioner of the library deals them by the
    ``values``, ascending. Its errors are passed on.

    It keeps the order of ``rows`` within a class, which may correlate with the writer
    or the date: shuffle them first.
    """
    import datasets  # imported here: it takes seconds

    partitioner.dataset = datasets.Dataset.from_dict({"by": values[rows], "row": rows})
    with warnings.catch_warnings():
        # they repeat what the result shows: fewer samples than asked for
        warnings.simplefilter("ignore")
        return [
            np.sort(np.asarray(partitioner.load_partition(client)["row"][:], np.int64))
            for client in range(partitioner.num_partitions)
        ]


@lru_cache
def names() -> tuple[str, ...]:
    """Return the names of the partitioners that deal samples."""
    from flwr_datasets import partitioner  # imported here: it takes seconds

    return tuple(name for name in partitioner.__all__ if name not in OTHERS)


def _class_of(options: DataOptions) -> Any:
    from flwr_datasets import partitioner

    name = options.partition.removeprefix(FLOWER)
    refuse_first(
        (name in OTHERS, f"data.partition = {options.partition!r}: {OTHERS.get(name)}"),
        (
            name not in names(),
            f"data.partition = {options.partition!r}: {nearest(name, names())}choose one of "
            f"{', '.join(names())}",
        ),
    )
    return getattr(partitioner, name)

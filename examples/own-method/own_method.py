"""Your own method, task and net, in one file outside the project. README.md shows how
to run them.

The method is FedExP: the server steps further than the mean update if the clients'
updates differ much. They then point to different optima, and their mean is short.

Source: Jhunjhunwala, Wang, Joshi, "FedExP: Speeding Up Federated Averaging via
Extrapolation", ICLR 2023, arXiv 2301.09604. With the updates D_k = w_k - w, their mean
D = sum p_k D_k and p_k = n_k / sum n (the paper's are equal):

    w <- w + eta D,    eta = max(1, sum p_k |D_k|^2 / (2 (|D|^2 + epsilon)))

The paper reports the mean of the last two models, this file the last one.
"""

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from torch import nn

from fedapps.algorithms.common.options import Options, option
from fedapps.algorithms.common.seeds import generator
from fedapps.clients import FedAvgClient
from fedapps.clients.base.data import ArrayData, ArraySplit
from fedapps.clients.base.evaluation import CLASSIFICATION
from fedapps.clients.base.training import trainable
from fedapps.errors import UserError
from fedapps.methods import Method
from fedapps.models.image_nets import build_model
from fedapps.strategies import FedAvg
from fedapps.strategies.base.updates import moved, updates
from fedapps.tasks.base import TorchTask, dealt
from fedapps.tasks.registry import TaskKind

# --- the method -----------------------------------------------------------------------


@dataclass(frozen=True)
class ExPOptions(Options):
    """Options of FedExP, in their own table of the settings."""

    epsilon: float = option(
        1e-3,
        "added to the squared length of the mean update; a larger value is closer to FedAvg",
        low=0,
    )


class FedExP(FedAvg):
    """Server half. A reply is FedAvg's plus the metric ``squared-length``, the squared
    length of the client's update.
    """

    # the model depends only on means of the replies, weighted by samples
    capabilities = FedAvg.capabilities

    def __init__(self, options: ExPOptions):
        super().__init__()
        self.options = options
        self._sent = ArrayRecord()

    def configure_train(
        self, server_round, arrays: ArrayRecord, config: ConfigRecord, grid
    ) -> Iterable:
        """Keep the model that is sent."""
        self._sent = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round, replies: Iterable
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Step along the mean update, further if the clients do not agree."""
        average, metrics = super().aggregate_train(server_round, replies)
        if average is None:
            return average, metrics
        (mean,) = updates(self._sent, [average])
        metrics["step"] = max(
            1.0, metrics["squared-length"] / (2 * (float(mean @ mean) + self.options.epsilon))
        )
        return moved(self._sent, metrics["step"] * mean, average), metrics


class FedExPClient(FedAvgClient):
    """Client half: FedAvg's, which also reports how long its update is."""

    def fit(self, parameters, config):
        """Train as FedAvg's client does."""
        arrays, num_examples, metrics = super().fit(parameters, config)
        learned = trainable(self.model)
        pairs = [
            pair
            for name, *pair in zip(self.model.state_dict(), parameters, arrays, strict=True)
            if name in learned
        ]
        squared = sum(float(np.sum((new.astype(float) - old) ** 2)) for old, new in pairs)
        return arrays, num_examples, {**metrics, "squared-length": squared}


METHOD = Method(
    summary="steps further than the mean update where clients differ",
    paper="Jhunjhunwala et al. 2023",
    trait="one global model",
    strategy=FedExP,
    client=FedExPClient,
    table="exp",
)

# --- the task -------------------------------------------------------------------------


@dataclass(frozen=True)
class RowsOptions(Options):
    """Options of the task. The path ``source`` is made absolute, because workers run in
    another folder.
    """

    source: str = option("patients.csv", "csv file; its other columns are numbers")
    site: str = option("site", "column that names the site of a row; each site is a client")
    label: str = option("label", "column of the class, a whole number from 0")


class SiteRows(TorchTask):
    """Classification of the rows of a csv file whose sites are the clients."""

    name = "site-rows"
    objective = CLASSIFICATION
    # the task computes nothing from the clients' rows before the first round, so it can
    # be used with differential privacy
    from_clients = ""

    @cached_property
    def sites(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """The numbers (n, F) and classes (n,) of each site's rows, by its name."""
        o = self.options
        if not Path(o.source).is_file():
            raise UserError(f"rows.source = {o.source!r}: no such file")
        with open(o.source, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        for key, column in (("site", o.site), ("label", o.label)):
            if not rows or column not in rows[0]:
                raise UserError(
                    f"rows.{key} = {column!r}: {o.source} has the columns "
                    f"{', '.join(rows[0]) if rows else 'none'}"
                )
        features = [name for name in rows[0] if name not in (o.site, o.label)]
        x = np.array([[float(row[name]) for name in features] for row in rows], np.float32)
        y, site = (
            np.array([int(row[o.label]) for row in rows]),
            np.array([row[o.site] for row in rows]),
        )
        return {name: (x[site == name], y[site == name]) for name in sorted(set(site))}

    def natural_clients(self) -> int:
        """Return the number of clients, one per site."""
        return len(self.sites)

    def check(self, num_clients: int) -> None:
        """Read everything that a run needs before it starts."""
        if num_clients > len(self.sites):
            raise UserError(
                f"num-clients = {num_clients}, but there are only {len(self.sites)} sites"
            )
        for client in range(num_clients):
            self.client_data(client, num_clients)
        self.initial_arrays()

    @property
    def num_outputs(self) -> int:
        """The number of classes."""
        return 1 + max(int(y.max()) for _, y in self.sites.values())

    def model_fn(self, seed: int) -> nn.Module:
        """Return a new net for rows as 1 x 1 x F."""
        x, _ = next(iter(self.sites.values()))
        return build_model(self.context.model.name, (1, 1, x.shape[1]), self.num_outputs, seed).to(
            self.device
        )

    def prepare(self, client: int, num_clients: int):
        """Return a site's rows, split 60 : 20 : 20 by the seed and scaled by its own
        training rows.
        """
        x, y = list(self.sites.values())[dealt(client, num_clients)]
        order = generator(self.context.seed, "split", client).permutation(len(y))
        parts = np.split(order, [len(y) * 6 // 10, len(y) * 8 // 10])
        mean, deviation = x[parts[0]].mean(0), x[parts[0]].std(0) + 1e-6
        scaled = ((x - mean) / deviation).reshape(len(y), 1, 1, -1)
        return ArrayData(*(ArraySplit(scaled[part], y[part]) for part in parts)).tensors()


TASK = TaskKind(SiteRows, RowsOptions, "rows")

# --- the net --------------------------------------------------------------------------


class Net(nn.Module):
    """Two layers; the last one is the head, for methods that treat it separately."""

    head = ("last.",)

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(input_shape[-1], 16), nn.ReLU())
        self.last = nn.Linear(16, num_classes)

    def forward(self, x):
        """Return logits."""
        return self.last(self.body(x))

"""Density estimation tasks of the ensemble methods: ``point-mass`` (synthetic, known
optimum) and ``unigram`` (one client per role).

A task of an ensemble method has ``library()``, the server's frozen predictors;
``client_data(client_id, num_clients)``, with the members described in
``clients.families.ensemble_data``; and ``check_library``, for a predictor library from
elsewhere.

Source: Hamer, Mohri, Suresh, "FedBoost: Communication-Efficient Algorithms for
Federated Learning", ICML 2020, section 5.
"""

from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapps.clients.families.ensemble_data import DensityData, Histogram
from fedapps.data.corpus import Corpus, read_corpus
from fedapps.errors import UserError
from fedapps.tasks.base import dealt
from fedapps.tasks.context import RunContext
from fedapps.tasks.options import PointMassOptions, UnigramOptions
from fedapps.tasks.predictor_library import TABLE, Library


class DensityTask:
    """Base of the two tasks, whose predictors are tables over a vocabulary."""

    name: str
    options: Any

    def library(self) -> Library:
        """Return the predictor library."""
        raise NotImplementedError

    def check_library(self, library: Library) -> None:
        """Raise ``UserError`` unless ``library``, loaded from elsewhere, holds
        densities over this task's outcomes.
        """
        library.check_densities()
        (size,), (wanted,) = library.spec[TABLE][1], self.library().spec[TABLE][1]
        if size != wanted:
            raise UserError(
                f"library: densities over {size} outcomes, but task {self.name!r} has {wanted}: "
                "use its vocabulary"
            )

    def initial_arrays(self) -> dict[str, NDArray[Any]]:
        """Return uniform weights alpha (q,)."""
        q = self.library().q
        return {"alpha": np.full(q, 1 / q)}


class PointMass(DensityTask):
    """Predictor k puts all mass on outcome k; the frequencies of the outcomes follow a
    power law, which the weights should recover.
    """

    name = "point-mass"
    from_clients = ""

    def __init__(self, options: Any, context: RunContext) -> None:
        self.options: PointMassOptions = options
        share = np.arange(1, self.options.size + 1, dtype=np.float64) ** -self.options.exponent
        self.counts = np.maximum(
            1, np.rint(self.options.samples * share / share.sum()).astype(np.int64)
        )

    def check(self, num_clients: int) -> None:
        """Raise ``UserError`` unless every client gets an outcome."""
        if num_clients > self.options.size:
            raise UserError(
                f"num-clients = {num_clients}, but task 'point-mass' has point-mass.size = "
                f"{self.options.size} outcomes to deal: "
                f"choose at most {self.options.size} clients"
            )

    @lru_cache(maxsize=1)  # noqa: B019 - a task lives as long as its process
    def library(self) -> Library:
        """Return the point masses."""
        return Library.from_arrays(
            {TABLE: np.eye(self.options.size, dtype=np.float32)}, from_clients=False
        )

    def client_data(self, client_id: int | str, num_clients: int) -> DensityData:
        """Return the samples of client ``client_id``: those of outcome k =
        ``client_id`` if there are as many clients as outcomes.

        With fewer clients the outcomes are dealt in turn. The pooled data follow the
        power law. Clients test on their training data.
        """
        client = dealt(client_id, num_clients)
        self.check(num_clients)
        mine = {int(k): int(self.counts[k]) for k in range(client, self.options.size, num_clients)}
        return DensityData(
            Histogram.of_counts(mine, self.options.size),
            None,
            self.options.epsilon,
            self.options.loss,
        )


class Unigram(DensityTask):
    """One client per speaking role; predictor k is the unigram model of role k. Fewer
    clients than roles: the first roles are used.
    """

    name = "unigram"
    from_clients = "the vocabulary and the library, which holds the clients' word frequencies"

    def __init__(self, options: Any, context: RunContext) -> None:
        self.options: UnigramOptions = options
        self.source = context.data.source
        self.num_roles = context.num_clients

    @cached_property
    def corpus(self) -> Corpus:
        """The word histograms of the roles in this run."""
        return read_corpus(self.source, self.options.role, self.options.text, self.num_roles)

    def check(self, num_clients: int) -> None:
        """Read the texts; raise ``UserError`` unless every client has a role."""
        if num_clients > len(self.corpus.roles):
            where = f"data.source = {self.source!r} with num-clients = {self.num_roles}"
            raise UserError(
                f"{num_clients} clients, but {where} gives {len(self.corpus.roles)} roles: set "
                "num-clients to the nodes"
            )

    @lru_cache(maxsize=1)  # noqa: B019
    def library(self) -> Library:
        """Return the unigram models of the roles' training texts."""
        tables = np.zeros((len(self.corpus.roles), len(self.corpus.vocabulary)), np.float32)
        for row, histogram in zip(tables, self.corpus.train, strict=True):
            row[histogram.outcomes] = histogram.weights
        return Library.from_arrays({TABLE: tables}, self.corpus.roles, from_clients=True)

    @cache  # noqa: B019
    def client_data(self, client_id: int | str, num_clients: int) -> DensityData:
        """Return the word histograms of a role (by sorted position); a role without
        test text is evaluated on its training text.
        """
        client = dealt(client_id, num_clients)
        self.check(num_clients)
        corpus = self.corpus
        return DensityData(
            corpus.train[client], corpus.test[client], self.options.epsilon, self.options.loss
        )

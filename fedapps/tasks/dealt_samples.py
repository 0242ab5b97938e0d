"""Base of the tasks that deal the samples of one data set to the clients, as
``data.partition`` says.
"""

from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from fedapps.clients.base.data import ClientData
from fedapps.data import partition as partitions
from fedapps.data.source import Samples
from fedapps.tasks.base import TorchTask

Rows = NDArray[np.int64]


class DealtSamples(TorchTask):
    """A task with ``samples``. Subclasses add ``read``, ``objective`` and
    ``model_fn``.
    """

    def read(self) -> Samples:
        """Read the whole data set. Raises ``UserError``."""
        raise NotImplementedError

    @cached_property
    def samples(self) -> Samples:
        """The data set, at most ``data.max-samples`` of it."""
        return partitions.thinned(self.read(), self.context.data)

    @lru_cache(maxsize=2)  # noqa: B019 - a task lives as long as its process
    def partition(self, num_clients: int) -> list[NDArray[np.int64]]:
        """Return the sample indices of each client."""
        return partitions.partition(
            self.samples, self.context.data, num_clients, self.context.split_seed
        )

    def natural_clients(self) -> int:
        """Return the number of clients in the column ``data.natural-id``; 0 for
        partitions over any number of clients.
        """
        return partitions.natural_clients(self.samples, self.context.data)

    def client_names(self, num_clients: int) -> tuple[str, ...]:
        """Return the clients' names in the data; () for partitions over any number of
        clients.
        """
        clients = self.samples.clients
        if clients is None or not self.natural_clients():
            return ()
        first = (part[0] for part in self.partition(num_clients))
        return tuple(clients.names[clients.codes[row]] for row in first)

    def check(self, num_clients: int) -> None:
        """Read and deal the samples and build the model, so that errors are reported
        before a run starts.
        """
        self.partition(num_clients)
        self.initial_arrays()

    def prepare(self, client: int, num_clients: int) -> ClientData:
        """Return a client's training, validation and test samples."""
        mine = self.partition(num_clients)[client]
        rows = self.split_of(mine, client, self.context.data.validation)
        own = partitions.scored(rows, self.context.data, self.samples.persons)
        return partitions.client_data(self.samples, own)

    def own_test(self, num_clients: int) -> bool:
        """Return whether the data say which samples clients are scored on."""
        return False

    def split_of(
        self, mine: Rows, client: int, validation: float, test: Rows | None = None
    ) -> tuple[Rows, Rows, Rows]:
        """Return the rows of a client's training, validation and test sets
        (:func:`partitions.split_rows`).
        """
        seed, persons, d = self.context.split_seed, self.samples.persons, self.context.data
        if d.folds and test is None:
            return partitions.fold_rows(mine, d, client, seed, persons=persons)
        return partitions.split_rows(mine, client, seed, validation, test, persons)

"""What a task can do beside the members of ``Task``. A task declares a capability by
having its members; check for one with ``isinstance``.

A task of your own needs only the members of ``Task``, and those of the capabilities
that its methods ask for.
"""

from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from numpy.typing import NDArray

from fedapps.algorithms.fairness.groups import Groups
from fedapps.clients.base.data import ArrayData, ClientData

if TYPE_CHECKING:  # imported late: most need PyTorch, which takes seconds
    import numpy as np
    from torch import nn

    from fedapps.data.scaling import Scale
    from fedapps.data.source import Samples
    from fedapps.tasks.regression import TargetScale


class Task(Protocol):
    """Interface of all tasks."""

    name: str

    def check(self, num_clients: int) -> None:
        """Prepare everything, so that errors are reported before a run starts. Raises
        ``UserError``.
        """

    def initial_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of the initial model by name."""


@runtime_checkable
class HasNaturalClients(Protocol):
    """The data may determine the number of clients."""

    def natural_clients(self) -> int:
        """Return their number; 0: any number."""


@runtime_checkable
class NamesClients(Protocol):
    """The data may name the clients."""

    def client_names(self, num_clients: int) -> tuple[str, ...]:
        """Return their names as the data have them; (): they have none."""


@runtime_checkable
class DeclaresOrigin(Protocol):
    """Says what it makes from the clients' data before the first round and hands to the
    server or to other clients, in words; "" if nothing. Differential privacy refuses a
    task that has something, or does not say.
    """

    from_clients: str


@runtime_checkable
class HasNet(Protocol):
    """Trains a net of PyTorch on the samples of its clients."""

    def work_model(self) -> "nn.Module":
        """Return the module that is trained and evaluated in this process."""

    def client_data(self, client_id: int | str, num_clients: int) -> ClientData:
        """Return the samples of a client as tensors."""


@runtime_checkable
class DealsNets(Protocol):
    """Clients may have different nets, which ``model.name`` names."""

    def with_net_of(self, client_id: int | str) -> Self:
        """Return the task with the net of this client."""


def with_net_of(task: Any, client_id: int | str) -> Any:
    """Return the task with the net of a client."""
    return task.with_net_of(client_id) if isinstance(task, DealsNets) else task


@runtime_checkable
class NamesNet(Protocol):
    """``model.name = "auto"`` stands for the net ``usual_net``."""

    usual_net: str


@runtime_checkable
class HasGroups(Protocol):
    """Test samples may be scored by group."""

    groups: Groups | None


@runtime_checkable
class SplitsSamples(Protocol):
    """Deals the samples of one set: by their numbers, before any input is read."""

    samples: "Samples"
    image_shape: tuple[int, int, int]
    standardise: str

    def partition(self, num_clients: int) -> "list[NDArray[np.int64]]":
        """Return the samples of each client, to train on and to hold back."""

    def split(
        self, client: int, num_clients: int
    ) -> "tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]":
        """Return a client's samples for training, validation and testing."""

    def remarks(self, num_clients: int) -> list[str]:
        """Return what a user should know of the partition, one line each."""

    def common_scale(self, num_clients: int) -> "Scale":
        """Return how the inputs of all clients are scaled, with standardise "sums"."""

    def scale_of(self, rows: "NDArray[np.int64]") -> "Scale | None":
        """Return how a client's inputs are scaled, with standardise "client"."""


@runtime_checkable
class HasTable(Protocol):
    """The samples are rows of a table."""

    num_features: int

    def arrays(self, client_id: int | str, num_clients: int, scale: bool = True) -> ArrayData:
        """Return the rows of a client."""


@runtime_checkable
class ScalesColumns(Protocol):
    """Features may be scaled alike for all clients."""

    def input_scale(self, num_clients: int) -> dict[str, list[Any]]:
        """Return names, mean and deviation of the features; {} if they differ."""


@runtime_checkable
class PredictsNumbers(Protocol):
    """Predicts numbers, not classes: ``center + scale * output``."""

    target_scale: "TargetScale"

    def target_parts(
        self, client: int, num_clients: int
    ) -> "tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]":
        """Return a client's targets for training, validation and testing."""

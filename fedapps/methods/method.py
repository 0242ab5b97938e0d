"""An entry of the table of methods."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from flwr.client import NumPyClient
from flwr.serverapp.strategy import Strategy

from algorithms.common.options import Options
from fedapps.tasks.context import RunContext
from fedapps.tasks.registry import NET_TASKS

if TYPE_CHECKING:  # commands that do not train read this table too: importing PyTorch takes seconds
    from clients import FedAvgClient
    from clients.base.store import Store

StrategyFactory = Callable[[Any, Any, RunContext], Strategy]
ClientFactory = Callable[[Any, Any, int | str, int, "Store"], NumPyClient]

IMAGE_TASKS = ("classification", "digits")


@dataclass(frozen=True)
class Method:
    """One method.

    Factories: either ``strategy(options, task, context) -> Strategy`` and
    ``client(options, task, client_id, num_clients, store) -> NumPyClient``; or
    ``wrap(strategy, options) -> Strategy`` for a method around another one, named
    ``base`` in its options, whose strategy and client it uses; or neither (warm-start,
    which uses those of two other methods). ``loss``: of a method that wraps, what makes
    the other one's client class minimise its loss; those without decide weights.

    ``all_clients``: needs full participation. ``public``: the server distils on
    unlabelled images (table ``public``). ``options``: dataclass of the method's own
    settings table ``table``, or ``None``. ``tasks``: tasks it can run on; the first is
    the default. ``defaults``: settings of the method's default job that differ from the
    general defaults. ``model``: the meaning of ``model.name = "auto"``, if it differs
    from the task's. ``synthetic``: produces a set of images (table ``synthetic``); the
    model is the classifier trained on it. ``page``: the method's page in ``docs``, if
    its name differs.
    """

    summary: str
    paper: str
    trait: str
    strategy: StrategyFactory | None = None
    client: "ClientFactory | TorchClient | None" = None
    wrap: Callable[[Strategy, Any], Strategy] | None = None
    loss: "Callable[[type[FedAvgClient]], type[FedAvgClient]] | None" = None
    all_clients: bool = False
    public: bool = False
    options: type[Options] | None = None
    table: str = ""
    tasks: tuple[str, ...] = NET_TASKS
    defaults: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    model: str = ""
    synthetic: bool = False
    page: str = ""


@dataclass(frozen=True)
class TorchClient:
    """Factory of clients that train the task's torch model; ``kind()``, called on first
    use, returns their class.
    """

    kind: "Callable[[], type[FedAvgClient]]"
    #: Whether its clients can be scored as new ones (``num-new-clients``).
    can_be_new: ClassVar[bool] = True

    def __call__(
        self, options: Any, task: Any, client_id: int | str, num_clients: int, store: "Store"
    ) -> NumPyClient:
        """Return the client."""
        data = task.client_data(client_id, num_clients)
        return self.kind()(task.model_fn, data, client_id, store, task.work_model(), task.objective)

    def with_loss(
        self, change: "Callable[[type[FedAvgClient]], type[FedAvgClient]]"
    ) -> "TorchClient":
        """Return a factory of clients of the class that ``change`` makes of this one;
        raises ``ValueError`` if it cannot.
        """
        kind = change(self.kind())
        return TorchClient(lambda: kind)

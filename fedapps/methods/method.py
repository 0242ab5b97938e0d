"""An entry of the table of methods."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, make_dataclass
from functools import partial
from typing import Any, cast, get_args

from flwr.client import NumPyClient
from flwr.serverapp.strategy import Strategy

from fedapps import clients
from fedapps.algorithms.common.options import Options, option
from fedapps.tasks.capabilities import with_net_of
from fedapps.tasks.context import RunContext
from fedapps.tasks.registry import NET_TASKS

StrategyFactory = Callable[[Any, Any, RunContext], Strategy]
ClientFactory = Callable[[Any, Any, int | str, int, "clients.Store"], NumPyClient]

IMAGE_TASKS = ("classification", "digits")


@dataclass(frozen=True)
class Method:
    """One method.

    ``strategy``: a Strategy class, or ``strategy(options, task, context) -> Strategy``
    if it takes more than its options; ``builds`` is then its class. ``client``: a class
    of clients that train the task's torch model, or its name in ``clients``, or a
    factory ``client(options, task, client_id, num_clients, store) -> NumPyClient``.

    ``wrap(strategy, options) -> Strategy``: for a method that wraps another one and
    uses its strategy and client; the field ``base`` of the options names it. ``loss``:
    for such a method, a function that makes the other method's client class minimise
    another loss; without it, the method decides weights. Warm-start has none of these:
    it uses two other methods.

    ``all_clients``: needs full participation. ``public``: the server, or with
    ``any_net`` each client, distils on unlabelled images (table ``public``).
    ``options``: dataclass of the method's settings table ``table``, or ``None``. By
    default it is the type of the class's parameter ``options``, with ``base`` if the
    method wraps, and the table is named after the class's module in ``strategies``.
    ``tasks``: tasks that it can run on; the first is the default. ``defaults``:
    settings of the method's default job that differ from the general defaults.
    ``model``: the meaning of ``model.name = "auto"``, if it differs from the task's.
    ``start``: likewise of ``model.start = "auto"``, or a function of the options that
    returns it. ``synthetic``: produces a set of images (table ``synthetic``); the model
    is the classifier trained on it. ``validates``: its clients, which train no net,
    score validation samples, too. ``chooses``: its clients choose by validation samples
    (a mixture, epochs), so they have some where a task's default job has none.
    ``any_net``: its clients send nothing of their nets, which may differ. ``page``: the
    method's page in ``docs``; by default named after the table, or after the method if
    it has no table.
    """

    summary: str
    paper: str
    trait: str
    strategy: StrategyFactory | type[Strategy] | None = None
    client: "ClientFactory | TorchClient | type[clients.FedAvgClient] | str | None" = None
    wrap: Callable[[Strategy, Any], Strategy] | None = None
    loss: "Callable[[type[clients.FedAvgClient]], type[clients.FedAvgClient]] | None" = None
    all_clients: bool = False
    public: bool = False
    options: type[Options] | None = None
    table: str = ""
    tasks: tuple[str, ...] = NET_TASKS
    defaults: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    model: str = ""
    start: str | Callable[[Any], str] = ""
    synthetic: bool = False
    validates: bool = False
    chooses: bool = False
    any_net: bool = False
    page: str = ""
    builds: type[Strategy] | None = None

    def __post_init__(self) -> None:
        """Fill in the fields that follow from the classes."""
        kind = self.builds or self.strategy or self.wrap
        if isinstance(kind, type):
            object.__setattr__(self, "builds", kind)
            options = self.options or options_of(kind)
            if options and self.wrap and not hasattr(options, "base"):
                options = with_base(options)
            object.__setattr__(self, "options", options)
            package, _, module = kind.__module__.rpartition(".")
            if options and not self.table and package == "fedapps.strategies":
                object.__setattr__(self, "table", module.replace("_", "-"))
        if isinstance(self.strategy, type):
            object.__setattr__(self, "strategy", partial(_built, self.strategy))
        if isinstance(client := self.client, str):
            object.__setattr__(self, "client", TorchClient(lambda: getattr(clients, client)))
        elif isinstance(client, type):
            object.__setattr__(self, "client", TorchClient(lambda: client))
        object.__setattr__(self, "page", self.page or self.table)

    @property
    def strategy_factory(self) -> StrategyFactory:
        """The factory of the strategy of a method that does not wrap another."""
        return cast(StrategyFactory, self.strategy)

    @property
    def client_factory(self) -> ClientFactory:
        """The factory of its clients."""
        return cast(ClientFactory, self.client)


def _built(kind: Any, options: Any, task: Any, context: RunContext) -> Strategy:
    """Return a strategy of a class that takes only its options, if any."""
    made: Strategy = kind(options) if options_of(kind) else kind()
    return made


def options_of(kind: type) -> type[Options] | None:
    """Return the options class that the parameter ``options`` of a class is annotated
    with, or ``None``.
    """
    parameter = inspect.signature(kind).parameters.get("options")
    kinds = (parameter.annotation, *get_args(parameter.annotation)) if parameter else ()
    return next((k for k in kinds if isinstance(k, type) and issubclass(k, Options)), None)


def with_base(
    kind: type[Options],
    help: str = "any method with a weighted average",
) -> type[Options]:
    """Return an options class like ``kind`` with an additional field ``base``, the name
    of the wrapped method.
    """
    return make_dataclass(
        kind.__name__, [("base", str, option("fedavg", help))], bases=(kind,), frozen=True
    )


@dataclass(frozen=True)
class TorchClient:
    """Factory of clients that train the task's torch model; ``kind()``, called on first
    use, returns their class.
    """

    kind: "Callable[[], type[clients.FedAvgClient]]"

    def __call__(
        self,
        options: Any,
        task: Any,
        client_id: int | str,
        num_clients: int,
        store: "clients.Store",
    ) -> NumPyClient:
        """Return the client."""
        data = task.client_data(client_id, num_clients)
        own = with_net_of(task, client_id)
        return self.kind()(
            getattr(own, "fresh_model", None) or own.model_fn,
            *(data, client_id, store, own.work_model(), task.objective),
        )

    def with_loss(
        self, change: "Callable[[type[clients.FedAvgClient]], type[clients.FedAvgClient]]"
    ) -> "TorchClient":
        """Return a factory for the client class that ``change`` returns for this one.
        Raises ``ValueError`` if the class cannot be changed.
        """
        kind = change(self.kind())
        return TorchClient(lambda: kind)

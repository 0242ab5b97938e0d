"""What an entry of the table of methods says."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flwr.client import NumPyClient
from flwr.serverapp.strategy import Strategy

from algorithms.common.options import Options
from fedapps.tasks.context import RunContext

if TYPE_CHECKING:  # the table of methods is read by commands that train nothing: PyTorch would take them seconds
    from clients import FedAvgClient
    from clients.base.store import Store

StrategyFactory = Callable[[Any, Any, RunContext], Strategy]
ClientFactory = Callable[[Any, Any, int | str, int, "Store"], NumPyClient]

IMAGE_TASKS = ("classification", "digits")


@dataclass(frozen=True)
class Method:
    """One method.

    Two halves: ``strategy(options, task, context) -> Strategy``;
    ``client(options, task, client_id, num_clients, store) -> NumPyClient``. Or
    ``wrap(strategy, options) -> Strategy``: it decides the weights of another method, which its options name as ``base``, and has the
    halves of that one. Or none of these: warm-start has the halves of two others. ``all_clients``: every client takes part in every
    round. ``public``: the server distils on its unlabelled images (table ``public``). ``options``: dataclass of the method's own
    table, or ``None``; ``tasks``: what it can run on, the first is its default; ``defaults``: settings of its small default job where
    they differ from everyone's. ``model``: what ``model.name = "auto"`` means, where it is not the task's own.
    ``synthetic``: it makes a set of images (table ``synthetic``), and the model is the classifier that is trained on it.
    ``page``: its page below ``docs``, where that has not the method's own name.
    """

    summary: str
    paper: str
    trait: str
    strategy: StrategyFactory | None = None
    client: ClientFactory | None = None
    wrap: Callable[[Strategy, Any], Strategy] | None = None
    all_clients: bool = False
    public: bool = False
    options: type[Options] | None = None
    table: str = ""
    tasks: tuple[str, ...] = ("classification", "digits", "tabular", "text", "speech", "text-pairs", "words")
    defaults: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    model: str = ""
    synthetic: bool = False
    page: str = ""


def torch_client(kind: "Callable[[], type[FedAvgClient]]") -> ClientFactory:
    """Return a factory of clients that train the task's torch model; ``kind()``, called late, is their class."""

    def build(options: Any, task: Any, client_id: int | str, num_clients: int, store: "Store") -> NumPyClient:
        data = task.client_data(client_id, num_clients)
        return kind()(task.model_fn, data, client_id, store, task.work_model(), task.objective)

    return build

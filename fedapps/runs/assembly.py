"""Construction of a run's parts from its settings: the task, the strategy, a client."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from flwr.app import RecordDict
from flwr.client import NumPyClient
from flwr.serverapp.strategy import Strategy

from fedapps import clients
from fedapps.clients.base.options import BF16, TrainOptions
from fedapps.data.options import DataOptions
from fedapps.errors import UserError, refuse_first
from fedapps.extensions.own_code import guarded
from fedapps.methods import METHODS
from fedapps.methods.method import ClientFactory, TorchClient
from fedapps.notes import logger
from fedapps.runs.work import compiler
from fedapps.settings.settings import Settings
from fedapps.strategies import Private, PrivateSum, Robust, WarmStart
from fedapps.strategies.base.capabilities import Hardening, sends_updates
from fedapps.strategies.base.messages import chain
from fedapps.strategies.base.partial_work import check_partial
from fedapps.strategies.secure import check_sums
from fedapps.tasks.capabilities import DeclaresOrigin, HasNet, SplitsSamples, Task
from fedapps.tasks.registry import find_task, make_task

#: Why ``train`` options are refused where a method does not train the task's net.
NO_STEPS = "its clients do not train the task's net by the options of train"


class Parts(NamedTuple):
    """The parts of a run, built once: its checked settings, task and strategy."""

    settings: Settings
    task: Task
    strategy: Strategy


def build_task(settings: Settings, site_data: str = "") -> Task:
    """Return the task of a run. ``site_data``: location of the site's own data, or
    "".
    """
    return make_task(settings.task, settings.problem, settings.context, site_data)


def build_strategy(settings: Settings, task: Any) -> Strategy:
    """Return the strategy. Raises ``UserError`` if the method does not support one of
    the settings, such as a limit on updates or differential privacy.
    """
    strategy = _strategy(settings, task)
    halves = [strategy.first, strategy.then] if isinstance(strategy, WarmStart) else [strategy]
    for half in halves:
        if settings.max_update_norm and not sends_updates(half):
            raise UserError(
                f"max-update-norm = {settings.max_update_norm}: the clients of this method send "
                "nothing that has a norm: set it to 0"
            )
    check_optimizer(settings, halves)
    check_steps(settings, task)
    if settings.rounds.late == "partial":
        check_work(settings, halves)
    if settings.hardened:
        for half in halves:
            harden(half)
    strategy = private(strategy, settings, task) if settings.dp.noise_multiplier else strategy
    refuse_first(
        (
            settings.num_new_clients
            and (settings.halves or not isinstance(client_factory(settings), TorchClient)),
            f"num-new-clients = {settings.num_new_clients}: method {settings.method!r} does not "
            "support new clients: set it to 0, or choose a method that trains one net",
        ),
        (
            settings.validates and not scores_validation(settings),
            f"{settings.validates}: clients of method {settings.method!r} do not score validation "
            "samples: leave it out, or choose histogram-boosting or a method that trains one net",
        ),
    )
    if settings.secure.on:
        try:
            check_sums(strategy, settings.secure)
        except ValueError as error:
            raise UserError(f"secure.on = true: {error}") from None
    return strategy


def scores_validation(settings: Settings) -> bool:
    """Return whether the method's clients can score validation samples."""
    if settings.halves or settings.entry.validates:
        return not settings.halves
    return hasattr(client_class(settings), "evaluate_validation")


def harden(strategy: Strategy) -> None:
    """Set the bounds of a strategy, and of those that it wraps, for clients that are
    not trusted.
    """
    for one in chain(strategy):
        if isinstance(one, Hardening):
            one.harden()


def validation_setting(settings: Settings, task: Any) -> str:
    """Return the setting that gives clients validation samples."""
    own = hasattr(settings.problem, "validation") and not isinstance(task, SplitsSamples)
    return f"{find_task(settings.task).table if own else 'data'}.validation"


def check_optimizer(settings: Settings, strategies: Sequence[Strategy]) -> None:
    """Raise ``UserError`` if a strategy or its clients exclude ``train.optimizer``."""
    name = settings.train.optimizer
    for half, strategy in zip(settings.halves or (settings,), strategies, strict=True):
        kind = client_class(half)
        makers = [kind, *chain(strategy)]
        reasons = [getattr(maker, "excluded_optimizers", {}).get(name) for maker in makers]
        if name != TrainOptions.optimizer and not kind and half.method in METHODS:
            reasons.append(f"{NO_STEPS}: leave it out")
        if why := next(filter(None, reasons), ""):
            raise UserError(f"train.optimizer = {name!r}: method {half.method!r}: {why}")


def check_steps(settings: Settings, task: Any) -> None:
    """Raise ``UserError`` if the clients, or their samples, do not support
    ``train.precision``, ``data.augment`` or ``model.adapter``.
    """
    precision, augment = settings.train.precision, settings.data.augment
    for half in settings.halves or (settings,):
        if settings.model.adapter != "none" and not (
            client_class(half) and hasattr(task, "fresh_model")
        ):
            raise UserError(
                f"model.adapter = {settings.model.adapter!r}: clients of method {half.method!r} "
                f"do not train the net of task {settings.task!r}: leave it 'none'"
            )
    for key, value, usual, reason in (
        ("train.precision", precision, TrainOptions.precision, "needs_float32"),
        ("data.augment", augment, DataOptions.augment, "needs_own_samples"),
    ):
        for half in (settings.halves or (settings,)) if value != usual else ():
            kind = client_class(half)
            why = getattr(kind, reason, "") if kind else NO_STEPS
            if why and half.method in METHODS:
                raise UserError(
                    f"{key} = {value!r}: method {half.method!r}: {why}: leave it {usual!r}"
                )
            if not kind:
                logger.warning(
                    "%s = %r: clients of method %r must act on it themselves",
                    *(key, value, half.method),
                )
    if precision == BF16 and hasattr(task, "device"):
        from fedapps.algorithms.common.precision import check_bfloat16

        try:
            check_bfloat16(task.device)
        except ValueError as error:
            raise UserError(f"train.{error}") from None
    if augment != DataOptions.augment and not settings.sites.own:
        found = (
            task.client_data(0, settings.num_clients).train if isinstance(task, HasNet) else None
        )
        if getattr(found, "augment", "") != augment:
            raise UserError(
                f"data.augment = {augment!r}: task {settings.task!r} does not augment: leave it "
                f"{DataOptions.augment!r}"
            )


def check_work(settings: Settings, strategies: Sequence[Strategy]) -> None:
    """Raise ``UserError`` if a strategy cannot use the replies of clients that end a
    round early, or its clients cannot end it.
    """
    what = "rounds.late = 'partial'"
    for half, strategy in zip(settings.halves or (settings,), strategies, strict=True):
        try:
            check_partial(strategy, f"{what}: method {half.method!r}")
        except ValueError as error:
            raise UserError(str(error)) from None
        if not (kind := client_class(half)):
            why = NO_STEPS
        else:
            from fedapps.clients.steps.trained_net import why_all_steps

            why = why_all_steps(kind)
        if why:
            raise UserError(f"{what}: method {half.method!r}: {why}: choose drop or keep")


def private(strategy: Strategy, settings: Settings, task: Any) -> Strategy:
    """Return the strategy with private aggregation. Raises ``UserError`` if epsilon
    would not cover every use of the clients' data.
    """
    try:
        kind = PrivateSum if settings.secure.on else Private
        wrapped = kind(strategy, settings.dp)
    except ValueError as error:
        raise UserError(f"dp.{error}") from None
    undeclared = "values that it does not declare (from_clients)"
    computed = task.from_clients if isinstance(task, DeclaresOrigin) else undeclared
    if computed:
        raise UserError(
            f"dp.noise-multiplier = {settings.dp.noise_multiplier}: epsilon would be wrong, since "
            f"before the first round task {task.name!r} computes from the clients' data: "
            f"{computed}. Choose a task or settings without it, or set dp.noise-multiplier = 0"
        )
    return wrapped


def _strategy(settings: Settings, task: Any) -> Strategy:
    if settings.halves:
        first, then = (_strategy(half, task) for half in settings.halves)
        return WarmStart(first, settings.options.rounds, then)
    strategy = _plain(settings, task)
    try:
        return Robust(strategy, settings.robust) if settings.robust.rule != "none" else strategy
    except ValueError as error:
        raise UserError(str(error)) from None


def _plain(settings: Settings, task: Any) -> Strategy:
    """Return the strategy of a method and of those that it wraps, without robust or
    private aggregation.
    """
    method, own = settings.entry, settings.method not in METHODS
    if settings.base is None:
        with guarded(
            "method", settings.method, "cannot make its strategy", own, passed=(ValueError,)
        ):
            strategy = method.strategy_factory(settings.options, task, settings.context)
            return _checked(settings, strategy)
    assert method.wrap is not None
    wrapped = _plain(settings.base, task)
    with guarded("method", settings.method, "cannot make its strategy", own):
        try:
            client_factory(settings)
            return _checked(settings, method.wrap(wrapped, settings.options))
        except ValueError as error:
            raise UserError(f"{of_base(settings)}: {error}") from None


def of_base(settings: Settings) -> str:
    """Return the setting that names the wrapped method, with its value."""
    assert settings.base is not None
    return f"{settings.entry.table}.base = {settings.base.method!r}"


def _checked(settings: Settings, strategy: Strategy) -> Strategy:
    if settings.method not in METHODS and not isinstance(strategy, Strategy):
        raise UserError(
            f"method = {settings.method!r}: its strategy is a {type(strategy).__name__}: it must "
            "be a Strategy of Flower"
        )
    return strategy


def client_class(settings: Settings) -> "type[clients.FedAvgClient] | None":
    """Return the class of the method's clients; ``None`` if they do not take local
    steps on the task's net.
    """
    factory = client_factory(settings)
    return factory.kind() if isinstance(factory, TorchClient) else None


def client_factory(settings: Settings) -> "ClientFactory":
    """Return the factory of the clients. Raises ``UserError`` if the clients of the
    wrapped method cannot use the loss of the chosen one.
    """
    method = settings.entry
    if settings.base is None:
        return method.client_factory
    factory = client_factory(settings.base)
    if method.loss is None:
        return factory
    if not isinstance(factory, TorchClient):
        raise UserError(
            f"{of_base(settings)}: its clients have no loss of a torch model that "
            f"{settings.method} could replace: choose fedavg, for example"
        )
    return factory.with_loss(method.loss)


def build_client(
    settings: Settings, task: Any, client_id: int | str, num_clients: int, store: "clients.Store"
) -> NumPyClient:
    """Return the client ``client_id`` of ``num_clients``; ``store`` holds its state."""
    if settings.halves:
        builders = [
            partial(build_client, half, task, client_id, num_clients, store)
            for half in settings.halves
        ]
        return clients.WarmStartClient(dict(zip(("first", "then"), builders, strict=True)))
    inner = settings
    while inner.base is not None:
        inner = inner.base
    client = client_factory(settings)(inner.options, task, client_id, num_clients, store)
    if hasattr(client, "compiler"):
        client.compiler = compiler()
    return client


def takes_steps(settings: Settings, task: Any) -> bool:
    """Return whether the method's clients take local steps that can be compiled. It
    builds a client to find out.
    """
    if settings.halves:
        return any(takes_steps(half, task) for half in settings.halves)
    store = clients.MessageStore(RecordDict())
    return hasattr(build_client(settings, task, 0, settings.num_clients, store), "compiler")

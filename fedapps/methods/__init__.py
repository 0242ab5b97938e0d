"""Every method, by name: its two halves, its options and what it runs on. To add a method, add an entry (see CONTRIBUTING.md)."""

from functools import partial
from typing import TYPE_CHECKING, Any

from flwr.client import NumPyClient
from flwr.serverapp.strategy import Strategy

from clients import TwoPhaseClient
from clients.base.store import Store
from fedapps.errors import UserError
from fedapps.methods import averaging, boosting, constrained, distilled, ensembles, fair, personal, synthetic, warm_start
from fedapps.methods.method import Method
from strategies import Private, WarmStart
from strategies.base.messages import innermost

if TYPE_CHECKING:
    from fedapps.settings import Settings


METHODS: dict[str, Method] = {
    **averaging.METHODS,
    **fair.METHODS,
    **personal.METHODS,
    **ensembles.METHODS,
    **boosting.METHODS,
    **constrained.METHODS,
    **distilled.METHODS,
    **synthetic.METHODS,
    **warm_start.METHODS,
}


def base_of(settings: "Settings") -> Method:
    """Return the method whose two halves a run uses: its own, or the one whose weights it decides."""
    method = METHODS[settings.method]
    return METHODS[settings.options.base] if method.wrap else method


def build_strategy(settings: "Settings", task: Any) -> Strategy:
    """Return the server half. Raises ``UserError`` where a bound on updates, or their privacy, does not go with the method."""
    strategy = _strategy(settings, task)
    halves = [strategy.first, strategy.then] if isinstance(strategy, WarmStart) else [strategy]
    for kind in (type(innermost(half)) for half in halves):
        updates = getattr(kind, "replies_like_model", False) or hasattr(kind, "replies_are_updates")
        if settings.max_update_norm and not updates:
            raise UserError(
                f"max-update-norm = {settings.max_update_norm}: the clients of this method send no updates that have a norm: choose 0"
            )
    try:
        return Private(strategy, settings.dp) if settings.dp.noise_multiplier else strategy
    except ValueError as error:
        raise UserError(f"dp.{error}") from None


def _strategy(settings: "Settings", task: Any) -> Strategy:
    if settings.halves:
        first, then = (_strategy(half, task) for half in settings.halves)
        return WarmStart(first, settings.options.rounds, then)
    method, base = METHODS[settings.method], base_of(settings)
    assert base.strategy is not None
    if method.wrap is None:
        return base.strategy(settings.options, task, settings.seed)
    return method.wrap(base.strategy(settings.base_options, task, settings.seed), settings.options)


def build_client(settings: "Settings", task: Any, client_id: int | str, num_clients: int, store: Store) -> NumPyClient:
    """Return a client half."""
    if settings.halves:
        builders = [partial(build_client, half, task, client_id, num_clients, store) for half in settings.halves]
        return TwoPhaseClient(dict(zip(("first", "then"), builders, strict=True)))
    base = base_of(settings)
    assert base.client is not None
    return base.client(task, client_id, num_clients, store)

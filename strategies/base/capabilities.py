"""What a strategy declares about itself, and what the rest asks of it beside Flower's interface. Closed by default.

A class that overrides ``aggregate_train`` says in the same class (or below) what it does with the replies:

    class FedNova(FedAvg):
        capabilities = Capabilities(replies="update", aggregation="weighted average")

        def aggregate_train(self, server_round, replies): ...

Without that line nothing is assumed: strategies that replace weights, private aggregation and warm starts refuse it. Flower's own
strategies are known; a subclass of one of them is covered as long as it leaves ``aggregate_train`` alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from flwr.app import ArrayRecord
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from strategies.base.messages import innermost

Named = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Capabilities:
    """What a training reply is, and what the strategy takes from the replies.

    ``replies``: "model" (the arrays that were sent, trained: same names, shapes and types), "update" (its arrays are the update
    itself), "other". ``aggregation``: "weighted average" (all it takes from the replies are sums of their arrays and metrics weighted
    by ``weighted_by_key``, so that a wrapper can replace the weights and noise in the sums makes it private), "uniform average" (the
    same with equal weights), "single replies" (it looks at replies one by one). ``later``: what replies become after the first round,
    where that differs.
    """

    replies: Literal["model", "update", "other"] = "other"
    aggregation: Literal["weighted average", "uniform average", "single replies"] = "single replies"
    later: Literal["model", "update", "other"] | None = None


AVERAGES = Capabilities("model", "weighted average")
# Flower's classes that define ``aggregate_train``. Its wrappers for differential privacy leave the averaging to what they wrap.
KNOWN: dict[type[Strategy], Capabilities] = {
    **dict.fromkeys((flower.FedAvg, flower.FedAvgM, flower.FedAdam, flower.FedYogi, flower.FedAdagrad, flower.FedProx), AVERAGES),
    **dict.fromkeys(
        (flower.FedMedian, flower.FedTrimmedAvg, flower.Krum, flower.MultiKrum, flower.Bulyan, flower.QFedAvg),
        Capabilities("model", "single replies"),
    ),
    **dict.fromkeys((flower.FedXgbBagging, flower.FedXgbCyclic), Capabilities("other", "single replies")),
}


def declared(strategy: Strategy) -> Capabilities | None:
    """Return what ``strategy`` declares; ``None`` where no declaration covers its ``aggregate_train``."""
    for kind in type(strategy).__mro__:
        if "capabilities" in vars(kind):
            capabilities: Capabilities = getattr(strategy, "capabilities")  # noqa: B009 - an attribute of the class or a property
            return capabilities
        if "aggregate_train" in vars(kind):
            inner = getattr(strategy, "strategy", None)
            if kind.__module__.startswith("flwr.") and isinstance(inner, Strategy):
                return declared(inner)
            return KNOWN.get(kind)
    return None


def require_declaration(strategy: Strategy, what: str) -> Capabilities:
    """Return what ``strategy`` declares; ``ValueError``, beginning with ``what``, where it declares nothing."""
    found = declared(strategy)
    if found is None:
        name = type(innermost(strategy)).__name__
        raise ValueError(
            f"{what}: {name} overrides aggregate_train and does not say what it takes from the replies: declare "
            f"capabilities = Capabilities(replies=..., aggregation=...) beside it (strategies.base.capabilities)"
        )
    return found


def replies_of(strategy: Strategy) -> str:
    """Return what a training reply to ``strategy`` is, for the validation of replies.

    A subclass of Flower's FedAvg that declares nothing is held to FedAvg's contract: its replies are models.
    """
    found = declared(strategy)
    if found is not None:
        return found.replies
    return "model" if isinstance(innermost(strategy), flower.FedAvg) else "other"


def sends_updates(strategy: Strategy) -> bool:
    """Return whether its clients' replies are models or updates, so that a bound on their norm means something."""
    found = declared(strategy)
    return (found.later if found and found.later else replies_of(strategy)) != "other"


# --- what else a strategy may offer: recognised by its members, no base class needed ------------------------------------


@runtime_checkable
class Finishing(Protocol):
    """A strategy that can end the run: ``finished`` is asked after every round."""

    finished: bool


@runtime_checkable
class DecidingWeights(Protocol):
    """A strategy that decides the clients' weights; ``last_weights``: those of the last round, sum 1, by client id."""

    last_weights: dict[int | str, float]


@runtime_checkable
class Stateful(Protocol):
    """A strategy whose server state, beside the model, can be saved."""

    def state_dict(self) -> Mapping[str, NDArray[Any]]:
        """Return the state."""

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore the state."""


@runtime_checkable
class SpendingPrivacy(Protocol):
    """A strategy that accounts for a privacy budget."""

    def privacy_spent(self) -> dict[str, float]:
        """Return ``epsilon`` and ``delta`` of all rounds so far."""


@runtime_checkable
class MakingSamples(Protocol):
    """A strategy whose product is a set of labelled samples: the run starts from its own arrays, not from the task's model."""

    labels: NDArray[Any]

    def first_arrays(self) -> Named:
        """Return what the run starts from."""

    def samples(self, arrays: ArrayRecord) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return x (M, ...) and y (M,) of what the run has come to."""


@runtime_checkable
class PrivateByItself(Protocol):
    """A strategy whose replies are no models, but whose step depends on a sum of updates that can be made private."""

    def privacy_fault(self) -> str:
        """Return why it cannot be made private as it is set up, or ""."""

    def zero_update(self, sent: Named) -> Named:
        """Return an update of 0; ``sent``: the arrays of the training message."""

    def update_of(self, arrays: Sequence[NDArray[Any]], sent: Named) -> Named:
        """Return the update in a reply's arrays; with other names or shapes than those of ``zero_update`` it is left out."""

    def reply_with(self, update: Named) -> Named:
        """Return the arrays of the one reply that has this update."""


def state_of(strategy: Strategy) -> dict[str, NDArray[Any]]:
    """Return a strategy's saved state; empty for one that keeps none."""
    return dict(strategy.state_dict()) if isinstance(strategy, Stateful) else {}


def load_state(strategy: Strategy, state: dict[str, NDArray[Any]]) -> None:
    """Restore a strategy's state, if it keeps one."""
    if isinstance(strategy, Stateful):
        strategy.load_state_dict(state)


def is_finished(strategy: Strategy) -> bool:
    """Return whether a strategy ends the run."""
    return isinstance(strategy, Finishing) and bool(strategy.finished)

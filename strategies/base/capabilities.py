"""What a strategy declares about its aggregation, and the optional protocols that it
may implement beside Flower's interface.

A class that overrides ``aggregate_train`` declares in the same class (or in a subclass)
what it does with the replies:

    class FedNova(FedAvg):
        capabilities = Capabilities(replies="update", aggregation="weighted average")

        def aggregate_train(self, server_round, replies): ...

Without a declaration nothing is assumed: weight rules, private aggregation and warm
starts reject the class. Flower's own strategies are known, and so are subclasses that
do not override ``aggregate_train``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from flwr.app import ArrayRecord, Message
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedapps.strategies.base.messages import chain, innermost, wrapped

Named = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Capabilities:
    """What a training reply holds, and how the strategy uses the replies.

    ``replies``: "model" (the arrays that were sent, trained: same names, shapes and
    types), "update" (the arrays are the update itself), "sums" (one array of whole
    numbers, as many as the message's configuration says under ``sums``, of which only
    the total over all clients is used), "other". ``aggregation``: "weighted average"
    (the replies enter only through sums of their arrays and metrics, weighted by
    ``weighted_by_key``, so a wrapper can replace the weights, and noise in the sums
    makes it private), "uniform average" (the same with equal weights), "single replies"
    (replies are used individually). ``later``: the kind of replies after the first
    round, if it differs. ``subset``: some of the replies may be passed on as if the
    other clients had not answered, though single replies are used. ``losses``: all that
    is taken from single replies are losses and sample counts, from which weights follow
    (:class:`WeighingAhead`). ``sums``: a sum of
    the replies would do, though single ones are checked; every reply may hold the mean
    then (:func:`needs_only_sums`). ``beside``: prefix
    of the names of arrays that a reply like the model holds beside it. ``one_way``:
    likewise of arrays in a message that the reply does not hold. ``any_scale``:
    arrays other than the model's have the scale of the user's problem, so that only the
    most general limit on their values applies. ``no_global_model``: why the server's
    model is useless without a client's own part; "" if it can be used.
    """

    replies: Literal["model", "update", "sums", "other"] = "other"
    aggregation: Literal["weighted average", "uniform average", "single replies"] = "single replies"
    later: Literal["model", "update", "sums", "other"] | None = None
    subset: bool = False
    losses: bool = False
    sums: bool = False
    beside: str = ""
    one_way: str = ""
    any_scale: bool = False
    no_global_model: str = ""


AVERAGES = Capabilities("model", "weighted average")
# Flower's classes that define ``aggregate_train``. Its wrappers for differential
# privacy leave the averaging to the wrapped strategy.
KNOWN: dict[type[Strategy], Capabilities] = {
    **dict.fromkeys(
        (
            flower.FedAvg,
            flower.FedAvgM,
            flower.FedAdam,
            flower.FedYogi,
            flower.FedAdagrad,
            flower.FedProx,
        ),
        AVERAGES,
    ),
    **dict.fromkeys(
        (
            flower.FedMedian,
            flower.FedTrimmedAvg,
            flower.Krum,
            flower.MultiKrum,
            flower.Bulyan,
            flower.QFedAvg,
        ),
        Capabilities("model", "single replies", subset=True),
    ),
    **dict.fromkeys(
        (flower.FedXgbBagging, flower.FedXgbCyclic), Capabilities("other", "single replies")
    ),
}


def declared(strategy: Strategy) -> Capabilities | None:
    """Return the declaration of ``strategy``; ``None`` if none covers its
    ``aggregate_train``.
    """
    for kind in type(strategy).__mro__:
        if "capabilities" in vars(kind):
            capabilities: Capabilities = getattr(strategy, "capabilities")  # noqa: B009 - an attribute of the class or a property
            return capabilities
        if "aggregate_train" in vars(kind):
            inner = wrapped(strategy) if kind.__module__.startswith("flwr.") else None
            return declared(inner) if inner else KNOWN.get(kind)
    return None


def counts_by_samples(strategy: Strategy) -> bool:
    """Return whether models count by the weights that the clients report."""
    if any(getattr(one, "sets_weights", False) for one in chain(strategy)):
        return False
    found = declared(innermost(strategy))
    return found is None or found.aggregation == "weighted average"


def declarer(strategy: Strategy) -> str:
    """Return the name of the class whose aggregation :func:`declared` describes:
    Flower's wrappers are looked through.
    """
    kind = type(strategy)
    inner = wrapped(strategy) if kind.__module__.startswith("flwr.") else None
    return declarer(inner) if inner else kind.__name__


def require_declaration(strategy: Strategy, what: str) -> Capabilities:
    """Return the declaration of ``strategy``; raise ``ValueError``, with a message that
    begins with ``what``, if there is none.
    """
    found = declared(strategy)
    if found is None:
        name = type(innermost(strategy)).__name__
        raise ValueError(
            f"{what}: {name} overrides aggregate_train and does not say what it takes from the "
            "replies: declare "
            "capabilities = Capabilities(replies=..., aggregation=...) beside it "
            "(fedapps.strategies.base.capabilities)"
        )
    return found


def weigher(strategy: Strategy) -> "WeighingAhead | None":
    """Return the strategy, it or one that it wraps, that can decide the weights of a
    round from metrics; ``None`` if there is none, or if single replies are used.
    """
    for one in chain(strategy):
        found = declared(one)
        if found is None or not found.losses:
            return None
        if isinstance(one, WeighingAhead):
            return one
    return None


def buffering(strategy: Strategy) -> "Buffering | None":
    """Return the strategy, it or one that it wraps, that makes rounds asynchronous."""
    return next((one for one in chain(strategy) if isinstance(one, Buffering)), None)


def needs_only_sums(strategy: Strategy) -> bool:
    """Return whether all that a strategy takes from the training replies are weighted
    sums of their arrays and metrics, so that nobody has to see a single one.
    """
    found = declared(strategy)
    return (
        found is not None
        and found.replies != "other"
        and found.later in (None, found.replies)
        and (found.aggregation != "single replies" or found.sums)
    )


def replies_of(strategy: Strategy) -> str:
    """Return the kind of training replies to ``strategy``, for reply validation.

    A subclass of Flower's FedAvg without a declaration must keep FedAvg's contract: its
    replies are models.
    """
    found = declared(strategy)
    if found is not None:
        return found.replies
    return "model" if isinstance(innermost(strategy), flower.FedAvg) else "other"


def counts_replies(strategy: Strategy, phase: str) -> bool:
    """Return whether a strategy's ``phase`` (the method "aggregate_train" or
    "aggregate_evaluate") is Flower's, which logs a count.
    """
    kinds = type(innermost(strategy)).__mro__
    return next(kind for kind in kinds if phase in vars(kind)).__module__.startswith("flwr.")


def sends_updates(strategy: Strategy) -> bool:
    """Return whether the clients' replies are models or updates, to which a bound on
    the norm applies.
    """
    found = declared(strategy)
    return (found.later if found and found.later else replies_of(strategy)) in ("model", "update")


def is_flowers_privacy(strategy: object) -> bool:
    """Return whether this is one of Flower's wrappers for differential privacy."""
    kind = type(strategy)
    return kind.__module__.startswith("flwr.") and kind.__name__.startswith("DifferentialPrivacy")


def is_private(strategy: Strategy) -> bool:
    """Return whether a strategy, or one that it wraps, makes its model private."""
    return any(isinstance(s, SpendingPrivacy) or is_flowers_privacy(s) for s in chain(strategy))


def needs_alike(strategy: Strategy) -> bool:
    """Return whether ``strategy`` ends the run when its replies differ in the names of
    their metrics, as Flower's own do.
    """
    return not getattr(innermost(strategy), "takes_any_metrics", False)


# --- optional protocols, recognised by their members: no base class needed ------------


@runtime_checkable
class Finishing(Protocol):
    """A strategy that can end the run: ``finished`` is checked after every round."""

    finished: bool


@runtime_checkable
class DecidingWeights(Protocol):
    """A strategy that decides the clients' weights; ``last_weights``: those of the last
    round by client id, summing to 1.
    """

    last_weights: dict[int | str, float]


@runtime_checkable
class Buffering(Protocol):
    """A strategy with asynchronous rounds: the model changes whenever some clients have
    replied, while others train on.
    """

    @property
    def exponent(self) -> float:
        """a: a reply that is s updates old counts (1 + s)^-a."""

    def buffer_size(self, training: int) -> int:
        """Return how many replies a round takes, if ``training`` clients train at a
        time.
        """


@runtime_checkable
class WeighingAhead(Protocol):
    """A strategy that decides the weights of a round from metrics alone."""

    @property
    def weighing_metrics(self) -> tuple[str, ...]:
        """The metrics that it needs of each client."""

    def weigh(self, replies: Sequence[Message], most: float) -> dict[int, float]:
        """Return the weights, which sum to 1, of a round's replies by node, none above
        ``most``. ``aggregate_train`` of this round takes them.
        """


@runtime_checkable
class CountingModels(Protocol):
    """A strategy whose messages are not one model each; ``models_sent``: ``models-up``
    and ``models-down`` of the last round.
    """

    models_sent: dict[str, int]


@runtime_checkable
class Measuring(Protocol):
    """A strategy that adds measures of its own to the clients' metrics;
    ``own_measures``: those of the last evaluation.
    """

    own_measures: Mapping[str, float]


@runtime_checkable
class Stateful(Protocol):
    """A strategy with server state, apart from the model, that can be saved."""

    def state_dict(self) -> Mapping[str, NDArray[Any]]:
        """Return the state."""

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore the state."""


@runtime_checkable
class SpendingPrivacy(Protocol):
    """A strategy that accounts for a privacy budget."""

    def privacy_spent(self) -> dict[str, float]:
        """Return ``epsilon``, ``delta`` and ``concentrated-rho`` of all rounds so
        far.
        """


@runtime_checkable
class CountingReleases(Protocol):
    """A strategy whose budget depends on the number of models that have left it."""

    def count_releases(self, before: int, announce: Callable[[int], None]) -> None:
        """Count on from ``before`` releases if that is more than it knows of, and call
        ``announce(round)`` before each one: it must not happen if that raises
        ``OSError``.
        """


@runtime_checkable
class Hardening(Protocol):
    """A strategy with bounds of its own for clients that are not trusted."""

    def harden(self) -> None:
        """Set them, where the options do not."""


@runtime_checkable
class StartingElsewhere(Protocol):
    """A strategy whose run starts from its own arrays, not from the task's model."""

    def first_arrays(self) -> Named:
        """Return the initial arrays of the run."""


@runtime_checkable
class MakingSamples(StartingElsewhere, Protocol):
    """A strategy that produces labelled synthetic samples."""

    labels: NDArray[Any]

    def samples(self, arrays: ArrayRecord) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the samples x (M, ...) and labels y (M,) held in the run's current
        arrays.
        """


@runtime_checkable
class PrivateByItself(Protocol):
    """A strategy whose replies are not models, but whose step depends on a sum of
    updates that can be made private.
    """

    def privacy_fault(self) -> str:
        """Return why it cannot be made private with its current options, or ""."""

    def zero_update(self, sent: Named) -> Named:
        """Return a zero update; ``sent``: the arrays of the training message."""

    def update_of(self, arrays: Sequence[NDArray[Any]], sent: Named) -> Named:
        """Return the update in a reply's arrays; the caller drops it if its names or
        shapes differ from those of ``zero_update``.
        """

    def reply_with(self, update: Named) -> Named:
        """Return the arrays of a reply that carries this update."""


def state_of(strategy: Strategy) -> dict[str, NDArray[Any]]:
    """Return a strategy's state; empty if it keeps none."""
    return dict(strategy.state_dict()) if isinstance(strategy, Stateful) else {}


def load_state(strategy: Strategy, state: dict[str, NDArray[Any]]) -> None:
    """Restore a strategy's state, if it keeps one."""
    if isinstance(strategy, Stateful):
        strategy.load_state_dict(state)


def counted_models(strategy: Strategy) -> dict[str, int]:
    """Return the models sent in the last round as a strategy counts them itself; empty
    if it does not.
    """
    inner = innermost(strategy)
    return dict(inner.models_sent) if isinstance(inner, CountingModels) else {}


def own_measures(strategy: Strategy) -> Mapping[str, float]:
    """Return a strategy's own measures of the last evaluation; empty if it has none."""
    inner = innermost(strategy)
    return inner.own_measures if isinstance(inner, Measuring) else {}


def is_finished(strategy: Strategy) -> bool:
    """Return whether a strategy ends the run."""
    return isinstance(strategy, Finishing) and bool(strategy.finished)

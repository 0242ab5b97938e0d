"""What a liar sends beside, or in place of, an honest reply: the attacks and lies of
``attacks.py``.

Every lie is a function of an honest reply, which it changes. Evaluations are answered
truthfully, unless the lie is about them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from flwr.client import NumPyClient
from numpy.typing import NDArray

Arrays = list[NDArray[Any]]
JOB: dict[str, Any] = {
    "num-clients": 10,
    "clients-per-round": 0,
    "evaluate-every": 0,
    "checkpoint-every": 0,
}
DIGITS: dict[str, Any] = {
    "num-rounds": 15,
    "train.local-epochs": 1,
    "train.learning-rate": 0.05,
    "data.partition": "iid",
    "data.split-seed": "seed",
}


@dataclass
class Reply:
    """An honest reply to a message with the arrays ``sent``, for a lie to change."""

    sent: Arrays
    arrays: Arrays
    count: int
    metrics: dict[str, Any]


Tell = Callable[[Reply], None]


@dataclass(frozen=True)
class Lie:
    """``tell(reply)`` changes replies to ``method``; ``once``: in this round only.

    ``flips``: the liar trains on labels 9 - y (1 - y of two classes). ``scored``: it
    lies about evaluations, not training. ``score``: the number of
    the summary that the lie is to spoil, times ``factor``.
    """

    name: str
    method: str
    tell: Tell
    settings: dict[str, Any] = field(default_factory=lambda: DIGITS)
    once: int = 0
    flips: bool = False
    scored: bool = False
    score: str = "accuracy-mean"
    factor: float = 100.0


class Liar(NumPyClient):  # type: ignore[misc]
    """A client that lies about its training or its evaluations."""

    def __init__(self, client: Any, lie: Lie) -> None:
        self.client, self.lie = client, lie
        if lie.flips:
            labels = client.data.train.y
            train = replace(client.data.train, y=(9 if labels.max() > 1 else 1) - labels)
            client.data = replace(client.data, train=train)

    def fit(self, parameters: Any, config: Any) -> Any:
        """Train, then change the reply."""
        sent = [np.array(array) for array in parameters]
        arrays, count, metrics = self.client.fit(parameters, config)
        reply = Reply(sent, [np.array(array) for array in arrays], count, dict(metrics))
        once = self.lie.once in (0, config["server-round"])
        if once and not self.lie.scored and config.get("phase") not in ("evaluate", "prepare"):
            self.lie.tell(reply)
        return reply.arrays, reply.count, reply.metrics

    def evaluate(self, parameters: Any, config: Any) -> Any:
        """Answer truthfully, or change the metrics."""
        loss, count, metrics = self.client.evaluate(parameters, config)
        reply = Reply([], [], count, dict(metrics))
        if self.lie.scored:
            self.lie.tell(reply)
        return loss, reply.count, reply.metrics


def moved(factor: float) -> Tell:
    """Send x + factor (y - x) for the model y trained from x."""

    def tell(reply: Reply) -> None:
        reply.arrays = [
            np.asarray(x + factor * (y - x), y.dtype)
            for x, y in zip(reply.sent, reply.arrays, strict=False)
        ]

    return tell


def filled(value: float, kind: str = "") -> Tell:
    """Send ``value`` everywhere, as type ``kind``."""

    def tell(reply: Reply) -> None:
        reply.arrays = [np.full_like(y, value, dtype=kind or y.dtype) for y in reply.arrays]

    return tell


def claimed(reply: Reply) -> None:
    """Claim 1e15 examples."""
    reply.count = 10**15


def scaled(factor: float, which: slice = slice(None), kind: str = "") -> Tell:
    """Multiply arrays of the reply."""

    def tell(reply: Reply) -> None:
        for place in range(len(reply.arrays))[which]:
            old = np.asarray(reply.arrays[place], kind or None)
            reply.arrays[place] = np.asarray(old * old.dtype.type(factor), old.dtype)

    return tell


def honest(reply: Reply) -> None:
    """Change nothing."""


def both(*lies: Tell) -> Tell:
    """Tell several lies."""

    def tell(reply: Reply) -> None:
        for lie in lies:
            lie(reply)

    return tell


def says(**metrics: float) -> Tell:
    """Report these metrics."""
    named = {name.replace("_", "-"): value for name, value in metrics.items()}
    return lambda reply: reply.metrics.update(named)


def _curve(reply: Reply) -> None:
    """Claim 9e14 validation samples, for which the worst lambda is the best."""
    if "candidate-losses" in reply.metrics:
        reply.metrics["validation-samples"] = 9e14
        losses = reply.metrics["candidate-losses"]
        reply.metrics["candidate-losses"] = [-loss for loss in losses]


def _flat(value: float, place: int) -> Tell:
    def tell(reply: Reply) -> None:
        reply.arrays[place] = np.full_like(reply.arrays[place], value)

    return tell


def _one_sided(size: float) -> Tell:
    """Praise the first predictor, blame all others."""

    def tell(reply: Reply) -> None:
        gradient = np.full_like(reply.arrays[0], size)
        gradient[:1] = -size
        reply.arrays[0] = gradient

    return tell


def _praise(reply: Reply) -> None:
    """Send the gradient of a client for which the first predictor alone counts."""
    reply.arrays[0] = np.zeros_like(reply.arrays[0])
    reply.arrays[0][0] = -1 / max(reply.sent[1][0], 1e-4)


TABLE = {"task": "tabular", "data.partition": "iid", "data.split-seed": "seed"}
TREES = {**TABLE, "num-rounds": 20, "histogram-boosting.depth": 3}
NETS = {**DIGITS, "num-rounds": 8, "ffgb.fit-steps": 40}
WORDS = {"num-rounds": 60, "task": "unigram"}
CLIENTS = {**WORDS, "fedboost.library": "clients"}
EVG = {"num-rounds": 10, "data.partition": "iid", "data.split-seed": "seed"}
MATRIX = {"task": "matrix-completion", "num-rounds": 60}
LOW = {"score": "loss-mean", "factor": 1.0}
OBJECTIVE = {"score": "objective", "factor": 1.0}
POOLED = {**DIGITS, "superfed.lambda-choice": "shared", "evaluate-every": 5}
FAST = {**DIGITS, "fedopt.server-learning-rate": 0.03}
WORST = says(loss_before=1e15)
LIES = (
    Lie("labels 9 - y", "fedavg", honest, flips=True),
    Lie("x - (y - x)", "fedavg", moved(-1.0)),
    Lie("x - 9 (y - x)", "fedavg", moved(-9.0)),
    Lie("x + 50 (y - x)", "fedavg", moved(50.0)),
    Lie("a model of fives", "fedavg", filled(5.0)),
    Lie("the same as float16", "fedavg", filled(5.0, "float16")),
    Lie("the same with num-examples 1e15", "fedavg", both(filled(5.0), claimed)),
    Lie("labels 9 - y, num-examples 1e15", "fedavg", claimed, flips=True),
    Lie("a model of 9e14 once", "fedavg", filled(9e14), once=8),
    Lie("a model of 1e5 once", "fedadam", filled(1e5), FAST, once=8),
    Lie("a model of 1e5 once", "fedyogi", filled(1e5), FAST, once=8),
    Lie("a model of fives", "scaffold", filled(5.0)),
    Lie("a model of fives", "ditto", filled(5.0)),
    Lie("a model of fives", "fedavg-distill", filled(5.0), {**DIGITS, "num-rounds": 5}),
    Lie("loss-before 1e15, labels 9 - y", "afl", WORST, flips=True),
    Lie("loss-before 1e15, labels 9 - y", "term", WORST, flips=True),
    Lie("loss-before 1e15, labels 9 - y", "q-fedavg", WORST, flips=True),
    Lie("loss-before 1e15, labels 9 - y", "aaggff-s", WORST, flips=True),
    Lie("curve reversed, validation-samples 9e14", "superfed-mm", _curve, POOLED, scored=True),
    Lie("sums of labels 1 - y", "histogram-boosting", honest, TREES, flips=True),
    Lie(
        "sums of labels 1 - y, x 1e6",
        "histogram-boosting",
        scaled(1e6, slice(None), "int64"),
        TREES,
        flips=True,
    ),
    Lie("a gradient of 1e6 once", "fedboost", _one_sided(1e6), WORDS, once=8, **LOW),
    Lie("a gradient of 30", "fedboost", _one_sided(30.0), WORDS, **LOW),
    Lie("all praise for one predictor", "fedboost", _praise, WORDS, **LOW),
    Lie("a predictor of 1e6s", "fedboost", filled(1e6), CLIENTS, once=1, **LOW),
    Lie("the same, loss 1e15", "aflboost", both(says(loss=1e15), _praise), WORDS, **LOW),
    Lie("output layers x 1000", "ffgb", scaled(1000.0, slice(-2, None)), NETS),
    Lie("output layers negated", "ffgb", scaled(-1.0, slice(-2, None)), NETS),
    Lie("leaves x 1000", "ffgb", scaled(1000.0, slice(-1, None)), {**TABLE, "num-rounds": 15}),
    Lie("gradients of 1e6", "fedevg", _flat(1e6, 0), EVG),
    Lie("gradients negated, log e = 50", "fedevg", both(_flat(50, 1), scaled(-1.0, slice(1))), EVG),
    Lie("a product x -1e6", "dfw-trace", scaled(-1e6), MATRIX, **OBJECTIVE),
    Lie("opposite atoms", "fedfw-plus", scaled(-1.0, slice(1)), MATRIX, **OBJECTIVE),
)

"""Client-level differential privacy around a strategy that averages: updates are
clipped and summed, and noise is added to the sum, by the server (``Private``) or by the
clients of a secure sum (``PrivateSum``).

    Private(FedAdam(), PrivacyOptions(noise_multiplier=1.0, clipping_norm=0.5))

Source: McMahan, Ramage, Talwar, Zhang, "Learning Differentially Private Recurrent
Language Models", ICLR 2018, arXiv 1710.06963, Algorithm 1 with the fixed denominator of
section 3. With m sampled clients and the updates D_k of those that replied:

    D = (sum_k min(1, C / |D_k|) D_k + N(0, z^2 C^2 I)) / m

The wrapped strategy is passed a single reply, the model that was sent plus D, and
processes it as usual: post-processing costs no privacy, so FedAdam's steps are as
private as the average. Adding or removing a client changes the sum by at most C,
whatever the other clients send. There is no amplification by sampling: the seed
determines the sample, and every client knows the seed. Therefore epsilon after T rounds
is that of T Gaussian releases (``algorithms.common.privacy``).

The noise is drawn from the operating system's entropy, not from the run's seed: anyone
who knows the seed could subtract it. Runs are therefore not repeatable. The server sees
the updates and must be trusted; metrics are not protected.

A run that is resumed repeats the rounds after its last checkpoint, and each repetition
is a further release. The same noise again would not avoid that: local training is not
repeatable on every device, and other clients may answer, so that the difference of the
two sums would show the clients' updates without any noise. ``count_releases`` therefore
lets the caller count a release on disk before it happens.

Differences from Flower's wrappers (``DifferentialPrivacyServerSideFixedClipping``),
which add the noise after the server's step, divide by the number of replies, fail on
integer arrays, and account only for their own FedAvg.

Contract: that of the wrapped strategy: FedAvg, one that averages like it, FedBoost or
FedEvg. All clients have equal weight; counters are not changed.

FedBoost's update is the gradient with respect to alpha, FedEvg's ``e_i grad E_i``
at all samples: its noisy mean is not divided by the mean of e_i.
"""

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedapps.algorithms.common.averaging import LIMIT, VARIANCES
from fedapps.algorithms.common.options import Options, check_range, option
from fedapps.algorithms.common.prefixes import under, within
from fedapps.algorithms.common.privacy import concentrated_epsilon, gaussian_epsilon
from fedapps.algorithms.contract.wire import read
from fedapps.strategies.base.capabilities import (
    Capabilities,
    Named,
    PrivateByItself,
    declared,
    is_finished,
    load_state,
    require_declaration,
    state_of,
)
from fedapps.strategies.base.messages import arrays_of, innermost, to_record, values_in, weight_key
from fedapps.strategies.base.reply_validation import update_of
from fedapps.strategies.base.wrapper import Wrapper


@dataclass(frozen=True)
class PrivacyOptions(Options):
    """Options of differential privacy."""

    noise_multiplier: float = option(
        0.0,
        "z, noise in the sum of the updates, in units of clipping-norm; 0: no differential privacy",
        low=0,
    )
    clipping_norm: float = option(
        1.0, "C, largest norm of a client's update; longer ones are shortened", low=0, open_low=True
    )
    delta: float = option(
        1e-5,
        "delta at which epsilon is reported; below 1 / number of clients",
        low=0,
        high=1,
        open_low=True,
        open_high=True,
    )
    max_epsilon: float = option(
        0.0, "the run ends before a round that would spend more; 0: never", low=0
    )


class Budget(Wrapper):
    """Base of wrappers that account for releases of a private model."""

    def __init__(self, strategy: Strategy, options: PrivacyOptions) -> None:
        check_range("noise-multiplier", options.noise_multiplier, 0, open_low=True)
        self.strategy = strategy
        self.options = options
        self.releases = 0
        self._announce: Callable[[int], None] = lambda _: None
        if self.finished:
            raise ValueError(
                f"max-epsilon = {options.max_epsilon}: one round with noise-multiplier = "
                f"{options.noise_multiplier} spends {self.epsilon(1):.3g}: raise one of them"
            )

    def epsilon(self, releases: int) -> float:
        """Return the epsilon of ``releases`` rounds."""
        return gaussian_epsilon(self.options.noise_multiplier, releases, self.options.delta)

    def privacy_spent(self) -> dict[str, float]:
        """Return epsilon and delta of all rounds so far, and the rho of concentrated
        privacy, which is what runs on the same data add up.
        """
        return {
            "epsilon": self.epsilon(self.releases),
            "delta": self.options.delta,
            "concentrated-rho": self.releases / (2 * self.options.noise_multiplier**2),
        }

    def count_releases(self, before: int, announce: Callable[[int], None]) -> None:
        """Count on from ``before`` releases, if that is more than the restored state
        knows of. ``announce(round)`` is called before each one; if it raises
        ``OSError``, the round keeps the model and releases nothing.
        """
        self.releases, self._announce = max(before, self.releases), announce

    def release(self, server_round: int) -> bool:
        """Count a release before it happens; return whether it may."""
        try:
            self._announce(server_round)
        except OSError as error:
            log(WARNING, "round %d keeps its model: no release is counted: %s", server_round, error)
            return False
        self.releases += 1
        return True

    @property
    def finished(self) -> bool:
        """Whether another round would exceed ``max_epsilon``, or the wrapped strategy
        is finished.
        """
        spent = 0 < self.options.max_epsilon < self.epsilon(self.releases + 1)
        return spent or is_finished(self.strategy)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Let the wrapped strategy sample and send, unless the budget is spent."""
        if self.finished:
            return []
        return list(self.strategy.configure_train(server_round, arrays, config, grid))

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the number of releases and the wrapped strategy's state, if it has
        one.
        """
        return {"releases": np.array(self.releases), **under("strategy.", state_of(self.strategy))}

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.releases = int(state["releases"])
        load_state(self.strategy, within("strategy.", state))

    def _metrics(self, metrics: MetricRecord | None) -> MetricRecord:
        return MetricRecord({**(metrics or {}), "epsilon": self.privacy_spent()["epsilon"]})


class Private(Budget):
    """Wrapper around ``strategy``; raises ``ValueError`` unless its model depends only
    on the average of the updates.
    """

    @property
    def capabilities(self) -> Capabilities:
        """Replies are those of the wrapped strategy; weights set by another wrapper
        would have no effect.
        """
        wrapped = declared(self.strategy)
        return Capabilities(wrapped.replies if wrapped else "other", "single replies")

    def __init__(
        self, strategy: Strategy, options: PrivacyOptions, rng: np.random.Generator | None = None
    ) -> None:
        _check(strategy)
        self._rng = rng or np.random.default_rng()
        self._sent: Named = {}
        self._asked = 0
        super().__init__(strategy, options)

    # --- the Strategy interface -------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """As ``Budget``; keep what is sent."""
        messages = super().configure_train(server_round, arrays, config, grid)
        sent = arrays_of(messages[0].content)[0] if messages else ArrayRecord()
        self._sent = {name: read(array) for name, array in sent.items()}
        if complex_ := [name for name, array in self._sent.items() if array.dtype.kind == "c"]:
            raise ValueError(
                f"noise-multiplier: array {complex_[0]!r} is complex: send two real ones"
            )
        self._asked = len(messages)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Pass the wrapped strategy one reply with the noisy average; metrics are
        averaged without noise.
        """
        valid = self.answered(replies)
        if not valid:
            return None, None
        own = self.strategy if isinstance(self.strategy, PrivateByItself) else None
        start = own.zero_update(self._sent) if own else self._sent
        total = {  # without masks, which stay as they were sent
            name: np.zeros(array.shape)
            for name, array in start.items()
            if array.dtype.kind == "f" and (np.abs(array) <= LIMIT).all()
        }
        for reply in valid:
            arrays = values_in(reply.content)
            named = (
                own.update_of(arrays, self._sent) if own else dict(zip(start, arrays, strict=False))
            )
            if _spec(named) != _spec(start):
                continue
            update = update_of({name: named[name] for name in total}, start)
            norm = math.sqrt(sum(float(np.vdot(part, part)) for part in update.values()))
            for name, part in update.items():
                total[name] += part * min(1.0, self.options.clipping_norm / norm if norm else 1.0)
        if not self.release(server_round):
            return None, None
        noise = self.options.noise_multiplier * self.options.clipping_norm
        moved = {
            name: np.asarray(
                array + (total[name] + self._rng.normal(0, noise, array.shape)) / self._asked,
                array.dtype,
            )
            if name in total
            else array
            for name, array in start.items()
        }
        for name in [name for name in moved if own is None and name.endswith(VARIANCES)]:
            moved[name] = np.maximum(moved[name], 0)  # the noise may have made them negative
        reply = self._one_reply(valid, own.reply_with(moved) if own else moved)
        arrays_, metrics = self.strategy.aggregate_train(server_round, [reply])
        return arrays_, self._metrics(metrics)

    def _one_reply(self, replies: list[Message], arrays: Named) -> Message:
        inner: Any = innermost(self.strategy)
        key = weight_key(inner)
        metrics = inner.train_metrics_aggr_fn([reply.content for reply in replies], key)
        metrics.pop("draw", None)  # of FedBoost; always the first draw
        reply = copy.copy(replies[0])
        reply.content = RecordDict(
            {"arrays": to_record(list(arrays), list(arrays.values())), "metrics": metrics}
        )
        metrics[key] = 1.0
        return reply


class PrivateSum(Budget):
    """Wrapper around ``strategy`` for secure sums: the clients clip their updates and
    add discrete Gaussian noise to them before they mask them, so that nobody sees more
    than the noisy sum. All clients have equal weight, and their metrics of training are
    not sent. Raises ``ValueError`` unless the strategy averages models.

    Without ``SecureSum`` or ``secured`` around it nobody would add noise: training is
    refused then.

    epsilon is that of the fewest clients that a sum may have: with more there is more
    noise. A round counts before it asks the clients, whatever becomes of it.

    Source: Kairouz, Liu, Steinke, "The Distributed Discrete Gaussian Mechanism for
    Federated Learning with Secure Aggregation", ICML 2021, arXiv 2102.06387.
    """

    @property
    def capabilities(self) -> Capabilities:
        """As those of the wrapped strategy, but with equal weights."""
        wrapped = require_declaration(self.strategy, "noise-multiplier")
        return replace(wrapped, aggregation="uniform average")

    def __init__(self, strategy: Strategy, options: PrivacyOptions) -> None:
        _check_averages(strategy)
        #: Whether clients add the noise: set by ``strategies.secure.secured``.
        self.secured = False
        super().__init__(strategy, options)

    def epsilon(self, releases: int) -> float:
        """Return the epsilon of ``releases`` rounds."""
        z = self.options.noise_multiplier
        return concentrated_epsilon(releases / (2 * z**2), self.options.delta)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """As ``Budget``, and count the release. Raises ``ValueError`` without secure
        sums.
        """
        if not self.secured:
            raise ValueError(
                "PrivateSum: without secure sums nobody adds noise: wrap it in SecureSum, or "
                "choose Private, which adds it at the server"
            )
        messages = super().configure_train(server_round, arrays, config, grid)
        return messages if messages and self.release(server_round) else []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the wrapped strategy take its step; the replies hold the noisy mean."""
        arrays, metrics = self.strategy.aggregate_train(server_round, replies)
        return arrays, self._metrics(metrics)


def _spec(arrays: Named) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (array.shape, array.dtype.kind) for name, array in arrays.items()}


def _check(strategy: Strategy) -> None:
    if isinstance(strategy, PrivateByItself):
        if fault := strategy.privacy_fault():
            raise ValueError(f"noise-multiplier: {fault}")
        return
    _check_averages(strategy)


def _check_averages(strategy: Strategy) -> None:
    wrapped = require_declaration(strategy, "noise-multiplier")
    if wrapped.replies != "model" or wrapped.aggregation == "single replies":
        raise ValueError(
            f"noise-multiplier: {type(strategy).__name__} uses more than the average of updates, "
            "and only the average can be private: choose a method that averages (fedavg, fedprox, "
            "fedadam, propfair, superfed-mm, ...) or fedboost, or noise-multiplier = 0"
        )

"""FedEvg: a synthetic data set that the server refines with the clients' energy
signals; no network parameters are exchanged.

Source: Hahn, "Algorithms for Collaborative Machine Learning under Statistical
Heterogeneity", dissertation, UNIST 2024, arXiv 2408.00050, Chapter IV, Algorithm 4.1.
The server holds M labelled samples, balanced over the classes and initialised with
noise. Every round the clients train their own classifiers and reply, for each sample,
with a weight and the gradient of its energy; the server makes one Langevin step along
the gradient of the mixture (``algorithms.synthetic.mixture``). The communication cost
of a round does not depend on the size of the networks.

Contract. A training message holds ``x`` (M, ...) and ``y`` (M,), and its configuration
the options of the client's steps: ``evg-lambda``, ``evg-langevin-steps``, ``evg-step``,
``evg-noise``, ``evg-clip``, ``evg-weights``, ``evg-persistent``, ``evg-low``. The reply
holds the energy gradients at x (M, ...) and ``log e`` (M,), in this order, and
``num-examples``. Evaluation: ``strategies.families.sample_sets``.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from logging import WARNING
from typing import Any, Unpack

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedapps.algorithms.common.options import Options, option
from fedapps.algorithms.common.seeds import generator
from fedapps.algorithms.contract.sent import FedEvgSent
from fedapps.algorithms.contract.wire import read
from fedapps.algorithms.synthetic.mixture import (
    SCHEDULES,
    WEIGHTS,
    bounded_signals,
    mixture_gradient,
    server_step,
    step_size,
)
from fedapps.strategies.base.capabilities import Capabilities, Named
from fedapps.strategies.base.messages import to_record, values_in
from fedapps.strategies.base.named_grid import ClientId, clients_of
from fedapps.strategies.families.sample_sets import Arrays, Evaluator, Synthetic, check_low
from fedapps.strategies.fedavg import FedAvgArguments

#: Larger values would overflow in e; clipping makes them meaningless long before.
LARGEST_LOG = 50.0
#: Bound on the entries of the gradients in a client's Langevin steps.
CLIP = 3.0


@dataclass(frozen=True)
class FedEvgOptions(Options):
    """Options of FedEvg."""

    beta_first: float = option(10.0, "the server's step along the energy in the first round", low=0)
    beta_last: float = option(0.01, "the server's step in the last round", low=0)
    schedule: str = option(
        "cosine", "how the step falls from beta-first to beta-last; ddpm: late", choices=SCHEDULES
    )
    delta: float = option(0.01, "noise of the server's step", low=0)
    lambda_: float = option(0.1, "weight of the cross-entropy on synthetic samples", low=0)
    langevin_steps: int = option(1, "R, a client's Langevin steps for a batch", low=1)
    langevin_step: float = option(1.0, "gamma, size of a client's Langevin steps", low=0)
    langevin_noise: float = option(0.01, "sigma, noise of a client's Langevin steps", low=0)
    weights: str = option(
        "sign", "weight of a client at a sample: e to the sign of -E, or e to -E", choices=WEIGHTS
    )
    persistent: bool = option(
        False,
        "clients keep net and Adam's moments between rounds; false: each round starts a new net",
    )
    net: str = option(
        "energy-cnn",
        "net of the clients; several, separated by commas, are assigned in turn (docs/fedevg.md)",
    )
    low: float = option(0.0, "smallest value of the images, 0 or -1; the largest is 1")

    def check(self) -> None:
        """Check the range of the images."""
        check_low(self.low)


class FedEvg(Synthetic):
    """FedEvg strategy. ``shape``: of a sample, (C, H, W)."""

    capabilities = Capabilities(replies="other", aggregation="single replies")
    scheduled = True

    def __init__(
        self,
        shape: Sequence[int],
        num_classes: int,
        evaluator: Evaluator,
        options: FedEvgOptions | None = None,
        samples: int = 100,
        seed: int = 0,
        **kwargs: Unpack[FedAvgArguments],
    ) -> None:
        super().__init__(evaluator, num_classes, samples, seed, **kwargs)
        self.options = options or FedEvgOptions()
        self.shape = tuple(shape)
        self._x: NDArray[np.float32] = np.zeros((0,), np.float32)
        self._names: Mapping[int, ClientId] = {}
        self._num_rounds = 1

    # --- privacy: the update is e_i grad E_i, which includes the weights --------------

    def privacy_fault(self) -> str:
        """Return "": the set depends on the clients only through the sum of their
        signals.
        """
        return ""

    def zero_update(self, sent: Named) -> Named:
        """Return zero signals."""
        return {"0": np.zeros_like(sent["x"])}

    def update_of(self, arrays: Sequence[NDArray[Any]], sent: Named) -> Named:
        """Return a client's weighted signals; empty if they do not match the
        samples.
        """
        return dict(zip("0", weighted_gradients(arrays, sent["x"]), strict=False))

    def reply_with(self, update: Named) -> Named:
        """Return the arrays of a reply with these signals and log e = 0."""
        return {**update, "1": np.zeros(len(update["0"]), np.float32)}

    # --- the set ----------------------------------------------------------------------

    def first_arrays(self) -> Arrays:
        """Return x ~ N(0, I), equation (4.12), and the labels."""
        rng = generator(self.seed, "synthetic start")
        return {
            "x": rng.standard_normal((len(self.labels), *self.shape), np.float32),
            "y": self.labels,
        }

    def samples(self, arrays: ArrayRecord) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the set, clipped to the range of images (the initial noise exceeds
        it).
        """
        return np.clip(read(arrays["x"]), self.options.low, 1), read(arrays["y"])

    def train_options(
        self, server_round: int, num_rounds: int
    ) -> dict[str, bool | int | float | str]:
        """Send the options of the clients' steps."""
        o = self.options
        return FedEvgSent(
            lambda_=o.lambda_,
            langevin_steps=o.langevin_steps,
            step=o.langevin_step,
            noise=o.langevin_noise,
            clip=CLIP,
            weights=o.weights,
            persistent=o.persistent,
            low=o.low,
        ).to_config()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the set to the sampled clients."""
        self._x, self._names = read(arrays["x"]), clients_of(grid)
        self._num_rounds = self.rounds_in(config, server_round)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Make one step along the energy gradient of the mixture, equations (4.13) and
        (4.14).
        """
        valid, logs, gradients = [], [], []
        for reply in self.answered(replies):
            signals = values_in(reply.content)
            if [signal.shape for signal in signals] != [self._x.shape, self._x.shape[:1]]:
                client = self._names.get(reply.metadata.src_node_id, "?")
                log(
                    WARNING,
                    "skipped client %s: its reply is not one gradient and one weight per sample",
                    client,
                )
                continue
            valid.append(reply.content)
            gradients.append(signals[0])
            logs.append(signals[1])
        if not valid:
            return None, None
        o = self.options
        logs, gradients = bounded_signals(logs, gradients, o.weights)
        gradient = mixture_gradient(logs, gradients, [self._weight(content) for content in valid])
        noise = generator(self.seed, "server noise", server_round=server_round).standard_normal(
            self._x.shape, np.float32
        )
        beta = step_size(o.schedule, o.beta_first, o.beta_last, server_round - 1, self._num_rounds)
        x = server_step(self._x, gradient, noise, beta, o.delta, o.low, 1.0)
        moved, agreement = float(np.abs(x - self._x).mean()), float(np.mean(np.stack(logs) > 0))
        measures = {"beta": beta, "moved": moved, "agreement": agreement}
        metrics = self.train_metrics_aggr_fn(valid, self.weighted_by_key)
        return to_record(["x", "y"], [x, self.labels]), MetricRecord({**metrics, **measures})


def weighted_gradients(signals: Sequence[NDArray[Any]], x: NDArray[Any]) -> list[NDArray[Any]]:
    """Return ``e_i grad E_i`` (M, ...) of a client's signals, for the private mean;
    empty if the signals do not match x.
    """
    if [signal.shape for signal in signals] != [x.shape, x.shape[:1]]:
        return []
    e = np.exp(np.minimum(signals[1], LARGEST_LOG)).reshape(-1, *[1] * (x.ndim - 1))
    return [np.asarray(e * signals[0], x.dtype)]

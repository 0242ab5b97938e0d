"""Local's client: trains its own model from round to round and shares only metrics.

A federated client that is sampled takes the K steps of a round, E epochs. Here every
client takes the share ``local-share`` of K steps in every round. Its steps form visits
of K steps, one after the other; a visit is cut where the round's share ends. A visit
begins with a momentum of 0, as a federated round does; a visit that was cut continues
with its momentum. After t rounds a client has taken the whole part of ``K (share_1 +
... + share_t)`` steps, for any shares. The initial model is that of a federated run
with the same seed.
"""

from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedapps.algorithms.common.seeds import generator
from fedapps.algorithms.common.steps import Epochs, batch_sizes
from fedapps.algorithms.contract.sent import LocalSent, RoundFacts
from fedapps.clients.base.training import (
    Arrays,
    Config,
    TrainOptions,
    get_arrays,
    set_arrays,
    trainable,
)
from fedapps.clients.families.own_net import OwnNetClient
from fedapps.clients.steps.batches import epochs
from fedapps.clients.steps.sgd import descent


class LocalClient(OwnNetClient):
    """Trains and evaluates a purely local model."""

    reads = (LocalSent,)
    differentiates_surrogate = True

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, dict[str, Any]]:
        """Train the client's own model further; return no arrays, and no loss in a
        round whose share is less than a step.
        """
        set_arrays(self.model, self.own_model(config, before=True))
        loss = self.train_share(config)
        self.store.save("model", get_arrays(self.model), config)
        return [], len(self.data.train), {} if loss is None else {"loss": loss}

    def train_share(self, config: Config) -> float | None:
        """Take the steps that are due, in place; return the mean loss of these,
        ``None`` if no step is due.
        """
        options = TrainOptions.from_config(config)
        (sgd, rate), steps = self.sgd(config), self.steps_of(options)
        tensors = [p.detach() for p in trainable(self.model).values()]
        due, done, velocity = self.progress(config)
        due += LocalSent.from_config(config).share
        stop, losses = int(due * steps + 1e-6), []
        while done < stop:
            visit, start = divmod(done, steps)
            end = min(steps, stop - visit * steps)
            step, state = descent(sgd, tensors, rate)
            if start and len(velocity) == len(state["velocity"]):
                state = {**state, "velocity": velocity}
            velocity = state["velocity"]
            loss = self.run(step, state, config, self.part(visit, start, end, options, config))
            losses.append((loss, end - start))
            done = visit * steps + end
        within = velocity if done % steps else []
        self.store.save(
            "progress", [np.array([due, done]), *(t.cpu().numpy() for t in within)], config
        )
        return sum(loss * n for loss, n in losses) / sum(n for _, n in losses) if losses else None

    def progress(self, config: Config) -> tuple[float, int, list[Tensor]]:
        """Return the visits that were due until now, the steps taken, and the momentum
        of a visit that was cut.
        """
        kept = self.store.load("progress", config, before=True)
        if kept is None:
            return 0.0, 0, []
        device = self.data.train.y.device
        return (
            float(kept[0][0]),
            int(kept[0][1]),
            [torch.tensor(array, device=device) for array in kept[1:]],
        )

    def part(
        self, visit: int, start: int, end: int, options: TrainOptions, config: Config
    ) -> Epochs:
        """Yield the samples of a visit's steps from ``start`` to ``end``, in the order
        in which the whole visit goes through them.
        """
        rng = generator(RoundFacts.from_config(config).seed, "batches", self.client_id, visit + 1)
        sizes = batch_sizes(self.data.train.x, options.batch_size, self.model)
        ends, steps = [0, *accumulate(sizes)], len(sizes)
        with self.training(config):
            for epoch, (x, y) in enumerate(epochs(self.data.train, options, rng)):
                first, last = max(start - epoch * steps, 0), min(end - epoch * steps, steps)
                if first < last:
                    yield x[ends[first] : ends[last]], y[ends[first] : ends[last]]

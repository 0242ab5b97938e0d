"""FedDM: clients send a few synthetic images of each of their classes, made by
distribution matching; one round may be enough.

The server pools the images of a round and trains the classifier on them. The clients
make the images of the next round near the weights of this classifier; until images have
arrived, the weights are random. The images of the clients that were sampled and replied
replace those of the round before; a round without images keeps them.

Source: Xiong, Wang, Cheng, Yu, Hsieh, "FedDM: Iterative Distribution Matching for
Communication-Efficient Federated Learning", CVPR 2023, arXiv 2207.09653, Algorithm 1.

Contract. A training message holds the classifier's arrays, and its configuration
``dm-images``, ``dm-steps``, ``dm-rate``, ``dm-radius`` and ``dm-low``. The reply holds
images (n, C, H, W) and labels (n,), at most ``dm-images`` of a class, in this order,
and ``num-examples``. Evaluation: ``strategies.families.sample_sets``.
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
from fedapps.algorithms.contract.sent import FedDMSent
from fedapps.algorithms.contract.wire import read
from fedapps.strategies.base.capabilities import Capabilities
from fedapps.strategies.base.messages import to_record, values_in
from fedapps.strategies.base.named_grid import ClientId, clients_of
from fedapps.strategies.families.sample_sets import Arrays, Evaluator, Synthetic, check_low
from fedapps.strategies.fedavg import FedAvgArguments


@dataclass(frozen=True)
class FedDMOptions(Options):
    """Options of FedDM."""

    images: int = option(1, "images that a client makes per class", low=1)
    steps: int = option(100, "a client's steps on its images in a round", low=1)
    rate: float = option(
        1.0, "learning rate of these steps, with momentum 0.5", low=0, open_low=True
    )
    radius: float = option(
        5.0, "rho, distance from the server's weights at which images are matched", low=0
    )
    low: float = option(0.0, "smallest value of the images, 0 or -1; the largest is 1")

    def check(self) -> None:
        """Check the range of the images."""
        check_low(self.low)


class FedDM(Synthetic):
    """FedDM strategy. ``shape``: of an image, (C, H, W). ``classifier``: the initial
    arrays by name.
    """

    capabilities = Capabilities(replies="other", aggregation="single replies")

    def __init__(
        self,
        shape: Sequence[int],
        num_classes: int,
        classifier: Arrays,
        evaluator: Evaluator,
        options: FedDMOptions | None = None,
        seed: int = 0,
        **kwargs: Unpack[FedAvgArguments],
    ) -> None:
        super().__init__(evaluator, num_classes, num_classes, seed, **kwargs)
        self.options = options or FedDMOptions()
        self.shape, self.num_classes, self.classifier = tuple(shape), num_classes, classifier
        self._names: Mapping[int, ClientId] = {}

    def first_arrays(self) -> Arrays:
        """Return a set of noise, one image per class."""
        noise = generator(self.seed, "synthetic start").random(
            (self.num_classes, *self.shape), np.float32
        )
        return {"x": noise * (1 - self.options.low) + self.options.low, "y": self.labels}

    def samples(self, arrays: ArrayRecord) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the set."""
        return read(arrays["x"]), read(arrays["y"])

    def _is_noise(self, arrays: ArrayRecord) -> bool:
        """Return whether the set is still the initial noise, because no reply has been
        usable yet.
        """
        return np.array_equal(self.samples(arrays)[0], self.first_arrays()["x"])

    def train_options(
        self, server_round: int, num_rounds: int
    ) -> dict[str, bool | int | float | str]:
        """Send the options of the clients' steps."""
        return FedDMSent.of(self.options).to_config()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the classifier: random weights until images have arrived, then the
        weights trained on the set.
        """
        self._names = clients_of(grid)
        sent = (
            self.classifier
            if self._is_noise(arrays)
            else self.evaluated(arrays, server_round - 1)[0]
        )
        return super().configure_train(
            server_round, to_record(list(sent), list(sent.values())), config, grid
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Pool the images, in the order of client ids."""
        valid, sets = [], []
        for reply in self.answered(replies):
            arrays = values_in(reply.content)
            if fault := self._fault(arrays):
                log(
                    WARNING,
                    "skipped client %s: %s",
                    self._names.get(reply.metadata.src_node_id, "?"),
                    fault,
                )
                continue
            valid.append(reply.content)
            sets.append(arrays)
        if not valid:
            return None, None
        x, y = (np.concatenate(part) for part in zip(*sets, strict=True))
        metrics = self.train_metrics_aggr_fn(valid, self.weighted_by_key)
        x = np.clip(x, self.options.low, 1).astype(np.float32)
        return to_record(["x", "y"], [x, y.astype(np.int32)]), MetricRecord(
            {**metrics, "images": len(y)}
        )

    def _fault(self, arrays: Sequence[NDArray[Any]]) -> str:
        """Return what is wrong with the images and labels of a client; "" if nothing
        is.
        """
        if (
            len(arrays) != 2
            or arrays[0].shape != (*arrays[1].shape, *self.shape)
            or arrays[1].dtype.kind != "i"
        ):
            return f"its reply is not images of shape {self.shape} with one label each"
        counts = np.bincount(
            np.clip(arrays[1], -1, self.num_classes) + 1, minlength=self.num_classes + 2
        )
        if counts[0] or counts[-1] or not len(arrays[1]):
            return f"its labels are not from 0 to {self.num_classes - 1}"
        most = int(counts.max())
        return (
            f"it sent {most} images of one class (limit {self.options.images})"
            if most > self.options.images
            else ""
        )

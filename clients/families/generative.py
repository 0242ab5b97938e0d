"""Base for clients that train a generative model and evaluate a classifier trained on
its samples: FedCGAN, FedCVAE.

Source: Hahn, "Algorithms for Collaborative Machine Learning under Statistical
Heterogeneity", dissertation, UNIST 2024, arXiv 2408.00050, Chapter IV.
"""

from abc import abstractmethod
from contextlib import closing
from typing import Any

import torch
from torch import Tensor, nn

from fedapps.algorithms.common.schedule import samples_of
from fedapps.clients.base.training import Arrays, Config, TrainOptions, get_arrays, set_arrays
from fedapps.clients.fedavg import FedAvgClient


class GeneratorClient(FedAvgClient):
    """Trains the generative model ``net``, which is exchanged; ``model_fn`` makes the
    server's classifier, which is only evaluated.
    """

    excluded_optimizers = dict.fromkeys(
        ("adam", "adamw"), "it has an optimiser of its own: leave it out"
    )

    needs_float32 = "it trains a net of its own"

    def __init__(self, net: nn.Module, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.net = net

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, dict[str, Any]]:
        """Return the net after ``local-epochs`` of Adam, the number of samples and the
        mean loss.
        """
        set_arrays(self.net, parameters)
        loss = self.train(config)
        return get_arrays(self.net), len(self.data.train), {"loss": loss}

    def train(self, config: Config) -> float:
        """Train ``self.net`` in place for one round; return the mean loss over samples.
        Adam's moments are reset every round.
        """
        options = TrainOptions.from_config(config)
        self.net.train()
        step = self.steps(options, options.rate(self.round(config)))
        # summed on the device: reading it in every step would wait for that
        total = torch.zeros((), device=self.data.train.y.device)
        with closing(self.batches(options, config)) as batches:
            for x, y in batches:
                if len(y) > 1:  # batch normalisation needs two samples
                    total += step(x, y) * len(y)
        return float(total) / samples_of(
            options.local_epochs, len(self.data.train), options.batch_size
        )

    @abstractmethod
    def steps(self, options: TrainOptions, rate: float) -> Any:
        """Return the training step ``step(x, y) -> loss`` with new optimisers; it may
        draw from torch's seeded global generator.
        """


def adam(module: nn.Module, rate: float, options: TrainOptions) -> torch.optim.Adam:
    """Return Adam with the constants of the dissertation's program."""
    return torch.optim.Adam(
        module.parameters(), rate, (0.5, 0.999), weight_decay=options.weight_decay
    )


def check_images(x: Tensor, low: float) -> None:
    """Raise ``ValueError`` unless a client's images have values in [``low``, 1]."""
    if x.min() < low or x.max() > 1:
        raise ValueError(
            f"images with values in [{float(x.min()):g}, {float(x.max()):g}], but low = {low:g}: "
            f"bring them to [{low:g}, 1]"
        )

"""What the clients of FedCGAN and FedCVAE share: they train a net that makes samples, and score the classifier trained on these."""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from clients.base.training import Arrays, Config, TrainOptions, get_arrays, set_arrays
from clients.fedavg import FedAvgClient


class GeneratorClient(FedAvgClient):
    """Base of these clients. ``net``: what travels; ``model_fn`` makes the server's classifier, which is only scored."""

    def __init__(self, net: nn.Module, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.net = net

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, dict[str, Any]]:
        """Return the net trained by Adam for ``local-epochs``, the number of samples and the mean loss."""
        set_arrays(self.net, parameters)
        loss = self.train(config)
        return get_arrays(self.net), len(self.data.train), {"loss": loss}

    def train(self, config: Config) -> float:
        """Train ``self.net`` in place for one round; return the mean loss over samples. Adam's moments start at 0."""
        options = TrainOptions.from_config(config)
        self.net.train()
        step = self.steps(options, options.rate(self.round(config)))

        def step_if_two(x: Tensor, y: Tensor) -> Tensor:
            return step(x, y) if len(y) > 1 else torch.zeros((), device=y.device)  # one sample has no variance to normalise by

        return self.run_epochs(step_if_two, options, config)

    @abstractmethod
    def steps(self, options: TrainOptions, rate: float) -> Any:
        """Return ``step(x, y) -> loss``, with optimisers of this round. It may draw from torch's generator, which is seeded."""


def adam(module: nn.Module, rate: float, options: TrainOptions) -> torch.optim.Adam:
    """Return Adam with the constants of the paper's program."""
    return torch.optim.Adam(module.parameters(), rate, (0.5, 0.999), weight_decay=options.weight_decay)

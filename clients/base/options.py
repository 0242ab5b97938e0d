"""Options of local training. Without PyTorch: settings are read and checked before it is needed."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from algorithms.common.options import Options, kebab, option
from algorithms.common.schedule import decayed

Config = Mapping[str, Any]


@dataclass(frozen=True)
class TrainOptions(Options):
    """Options of local SGD."""

    learning_rate: float = option(0.01, "learning rate of the first round", low=0, open_low=True)
    lr_decay: float = option(0.99, "factor on the learning rate after every lr-decay-every rounds", low=0, high=1, open_low=True)
    momentum: float = option(0.9, "momentum; its buffer starts at 0 every round", low=0, high=1, open_high=True)
    weight_decay: float = option(1e-4, "weight decay", low=0)
    local_epochs: int = option(10, "E, passes over a client's samples in a round", low=1)
    batch_size: int = option(10, "B, samples of a step", low=1)
    lr_decay_every: int = option(1, "rounds between decays of the learning rate", low=1)

    @classmethod
    def from_config(cls, config: Config) -> "TrainOptions":
        """Read the options that a server sent in a message's configuration; what it did not send keeps its default."""
        keys = {field.name: kebab(field.name) for field in fields(cls)}
        return cls(**{name: config[key] for name, key in keys.items() if key in config})

    def to_config(self) -> dict[str, int | float]:
        """Return the options under the keys of a message's configuration."""
        return {kebab(name): value for name, value in asdict(self).items()}

    def rate(self, server_round: int) -> float:
        """Return the learning rate of a round (the first is 1)."""
        return decayed(self.learning_rate, self.lr_decay, self.lr_decay_every, server_round)

    def effective_steps(self, num_samples: int) -> float:
        """Return how many learning rates a gradient of 1 in every step of a round moves the model.

        Without momentum that is the number of steps K; with momentum beta the k-th last step counts ``(1 - beta^k) / (1 - beta)``
        times, because its gradient stays in the momentum buffer. ``num_samples``: those of the client's training set.
        """
        steps = self.local_epochs * -(-num_samples // self.batch_size)
        beta = self.momentum
        return sum((1 - beta**k) / (1 - beta) for k in range(1, steps + 1))

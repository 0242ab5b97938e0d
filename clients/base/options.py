"""Options of local training. Without PyTorch: settings are read and checked before it
is needed.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from algorithms.common.checks import nearest
from algorithms.common.options import Options, kebab, option
from algorithms.common.schedule import decayed

Config = Mapping[str, Any]

#: Keys of configurations that are no options of local training: what the round loop,
#: the strategies and the tasks send, in full or by their first word.
OTHERS = (
    "base",
    "cache",
    "cache-holds",
    "checkpoint-round",
    "clip",
    "clip-residual",
    "draw",
    "dual-mean",
    "etas",
    "first-round",
    "hashes",
    "lambda-0",
    "lambdas",
    "learner-arrays",
    "lipschitz",
    "local-share",
    "local-steps",
    "loss",
    "loss-before",
    "mixtures",
    "mu",
    "new",
    "num-clients",
    "num-rounds",
    "phase",
    "predictor-arrays",
    "residual",
    "resync",
    "rhos",
    "seed",
    "server-round",
    "share",
    "side",
    "stage",
    "stochastic",
    "sums",
    "train-loss",
    "variant",
    "version",
)
OF_METHODS = (
    "apfl-",
    "ditto-",
    "dm-",
    "evg-",
    "fedala-",
    "fedbabu-",
    "feddyn-",
    "fedrep-",
    "finetune-",
    "oracle-",
    "partial-",
    "per-fedavg-",
    "pfedme-",
    "propfair-",
    "proximal-",
    "superfed-",
    "warm-start-",
)
#: What options are called elsewhere.
ALIASES = {
    "lr": "learning-rate",
    "rate": "learning-rate",
    "epochs": "local-epochs",
    "num-epochs": "local-epochs",
    "bs": "batch-size",
    "wd": "weight-decay",
}
_told: set[str] = set()


COMPILE = ("auto", "on", "off")


@dataclass(frozen=True)
class TrainOptions(Options):
    """Options of local SGD."""

    learning_rate: float = option(0.01, "learning rate of the first round", low=0, open_low=True)
    lr_decay: float = option(
        0.99,
        "factor on the learning rate after every lr-decay-every rounds",
        low=0,
        high=1,
        open_low=True,
    )
    momentum: float = option(
        0.9, "momentum; its buffer starts at 0 every round", low=0, high=1, open_high=True
    )
    weight_decay: float = option(1e-4, "weight decay", low=0)
    local_epochs: int = option(10, "E, passes over a client's samples in a round", low=1)
    batch_size: int = option(10, "B, samples of a step", low=1)
    lr_decay_every: int = option(1, "rounds between decays of the learning rate", low=1)
    compile: str = option(
        "auto",
        "run local steps as compiled code; auto: on where the run's steps are worth it",
        choices=COMPILE,
    )

    @classmethod
    def from_config(cls, config: Config) -> "TrainOptions":
        """Read the options that a server sent in a message's configuration; what it did
        not send keeps its default.

        Keys that nothing here knows are logged once a process: a misspelt option would
        otherwise keep its default in silence.
        """
        keys = {field.name: kebab(field.name) for field in fields(cls)}
        if new := [key for key in unknown(config, keys.values()) if key not in _told]:
            _told.update(new)
            hints = [f"{key!r} ({_hint(key, keys.values())})" for key in new]
            logging.getLogger("flwr").warning(
                "keys of the configuration that have no effect on training: %s", ", ".join(hints)
            )
        return cls(**{name: config[key] for name, key in keys.items() if key in config})

    def to_config(self) -> dict[str, int | float | str]:
        """Return the options under the keys of a message's configuration."""
        return {kebab(name): value for name, value in asdict(self).items()}

    def rate(self, server_round: int) -> float:
        """Return the learning rate of a round (the first is 1)."""
        return decayed(self.learning_rate, self.lr_decay, self.lr_decay_every, server_round)

    def effective_steps(self, num_samples: int) -> float:
        """Return how many learning rates a gradient of 1 in every step of a round moves
        the model.

        Without momentum that is the number of steps K; with momentum beta the k-th last
        step counts ``(1 - beta^k) / (1 - beta)`` times, because its gradient stays in
        the momentum buffer. ``num_samples``: those of the client's training set.
        """
        steps = self.local_epochs * -(-num_samples // self.batch_size)
        beta = self.momentum
        return sum((1 - beta**k) / (1 - beta) for k in range(1, steps + 1))


def unknown(config: Config, options: Iterable[str]) -> list[str]:
    """Return the keys of a configuration that are neither ``options`` nor sent by a
    strategy or task of these packages.
    """
    return [
        key for key in config if key not in {*options, *OTHERS} and not key.startswith(OF_METHODS)
    ]


def _hint(key: str, options: Iterable[str]) -> str:
    word = key.replace("_", "-").lower()
    return (
        f"did you mean {ALIASES[word]!r}?" if word in ALIASES else nearest(word, options).strip()
    ) or "no such option"

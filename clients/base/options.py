"""Options of local training. Without PyTorch: settings are read and checked before it
is needed.
"""

import itertools
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from fedapps.algorithms.common.options import Options, nearest, option
from fedapps.algorithms.common.schedule import decayed, effective_steps, passes
from fedapps.algorithms.contract.sent import METHOD, Config as Config, RoundFacts, Scoring, Sent

#: Names of options in other projects.
ALIASES = {
    "lr": "learning-rate",
    "rate": "learning-rate",
    "epochs": "local-epochs",
    "num-epochs": "local-epochs",
    "bs": "batch-size",
    "wd": "weight-decay",
    "optimiser": "optimizer",
}
_logged: set[tuple[type, str]] = set()


COMPILE = ("auto", "on", "off")
OPTIMIZERS = ("sgd", "adam", "adamw")
BF16 = "bf16"


@dataclass(frozen=True)
class TrainOptions(Options, Sent):
    """Options of local training, as a server sends them in a message's configuration;
    options that are not sent keep their defaults.
    """

    learning_rate: float = option(0.01, "learning rate of the first round", low=0, open_low=True)
    lr_decay: float = option(
        0.99,
        "factor on the learning rate after every lr-decay-every rounds",
        low=0,
        high=1,
        open_low=True,
    )
    momentum: float = option(
        0.9,
        "momentum, or beta_1 of Adam; its buffer starts at 0 every round",
        low=0,
        high=1,
        open_high=True,
    )
    weight_decay: float = option(1e-4, "weight decay", low=0)
    local_epochs: float = option(
        10.0,
        "E, passes over a client's samples in a round; 0.5: half of one's steps",
        low=0,
        open_low=True,
    )
    batch_size: int = option(10, "B, samples per step", low=1)
    lr_decay_every: int = option(1, "rounds between decays of the learning rate", low=1)
    compile: str = option(
        "auto",
        "run local steps as compiled code; auto: on if the run has enough steps to pay for it",
        choices=COMPILE,
    )
    max_gradient_norm: float = option(
        0.0, "bound on the norm of a step's gradient; 0: none; tasks on tables: 1", low=0
    )
    optimizer: str = option(
        "sgd",
        "local optimiser; adam and adamw ignore a task's own learning rate and momentum",
        choices=OPTIMIZERS,
    )
    precision: str = option(
        "float32",
        "of forward passes in training and evaluation; bf16: bfloat16, with parameters, gradients "
        "and what is sent in float32",
        choices=("float32", BF16),
    )

    def __post_init__(self) -> None:
        """Check the options; whole epochs are an ``int``, which own loops count."""
        super().__post_init__()
        if self.local_epochs == int(self.local_epochs):
            object.__setattr__(self, "local_epochs", int(self.local_epochs))

    def rate(self, server_round: int) -> float:
        """Return the learning rate of a round (the first is 1)."""
        return decayed(self.learning_rate, self.lr_decay, self.lr_decay_every, server_round)

    def effective_steps(self, num_samples: int) -> float:
        """Return the effective number of steps of a round on ``num_samples`` training
        samples.
        """
        whole, rest = passes(self.local_epochs, num_samples, self.batch_size)
        steps = whole * -(-num_samples // self.batch_size) + -(-rest // self.batch_size)
        return effective_steps(steps, self.momentum)


@cache
def keys_read(kind: type) -> frozenset[str] | None:
    """Return the keys that clients of a class read, by the declarations in ``reads`` of
    the class and its bases; ``None`` if there are none.
    """
    declared = [sent for base in kind.__mro__ for sent in vars(base).get("reads", ())]
    if not declared:
        return None
    every = (RoundFacts, Scoring, TrainOptions, *declared)
    return frozenset(itertools.chain.from_iterable(sent.keys() for sent in every))


@cache
def acknowledged(kind: type) -> dict[str, str]:
    """Return the acknowledgement in a training reply of clients of this class: the
    names of the methods in ``reads``.
    """
    declared = [sent for base in kind.__mro__ for sent in vars(base).get("reads", ())]
    names = sorted({sent.method for sent in declared if sent.method})
    return {METHOD: " ".join(names)} if names else {}


def notice_unread(kind: type, config: Config) -> None:
    """Log the keys of a configuration that clients of this class do not read, once per
    process: a misspelt option would otherwise silently keep its default.
    """
    known = keys_read(kind)
    if known is None:
        return
    new = [key for key in config if key not in known and (kind, key) not in _logged]
    if new:
        _logged.update((kind, key) for key in new)
        hints = [f"{key!r} ({_hint(key, known)})" for key in new]
        logging.getLogger("flwr").warning(
            "keys of the configuration that %s does not read: %s", kind.__name__, ", ".join(hints)
        )


def _hint(key: str, known: Iterable[str]) -> str:
    word = key.replace("_", "-").lower()
    if word in ALIASES:
        return f"did you mean {ALIASES[word]!r}?"
    return nearest(word, known).strip() or "no such option; a class declares its own in reads"

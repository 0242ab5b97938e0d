"""What a strategy sends its clients in a message's configuration, declared once: a
frozen dataclass that the strategy writes and the client reads.

    @dataclass(frozen=True)
    class DittoSent(Sent, prefix="ditto-"):
        \"\"\"What Ditto sends for training.\"\"\"

        mu: float
        epochs: int

    config.update(DittoSent(mu=1.0, epochs=5).to_config())  # ditto-mu, ditto-epochs
    mu = DittoSent.from_config(config).mu

A field without a default must be in the message. A field that is ``None`` is not sent.
A client class lists its declarations in ``reads``; other keys are logged
(``clients.base.options``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from functools import cache, lru_cache
from typing import Any, ClassVar, Self, TypeVar

from fedapps.algorithms.common.options import kebab

Config = Mapping[str, Any]
#: Name of the text in a training reply that says which methods made it.
METHOD = "method"
CASTS: tuple[type, ...] = (bool, int, float, str)
AnySent = TypeVar("AnySent", bound="Sent")


@dataclass(frozen=True)
class Sent:
    """Base of these dataclasses. A key is ``prefix`` followed by the field's name."""

    prefix: ClassVar[str] = ""
    #: The method of the clients that read this. Their replies acknowledge it; "": no
    #: acknowledgement is needed.
    method: ClassVar[str] = ""

    def __init_subclass__(cls, prefix: str | None = None, method: str | None = None) -> None:
        """Set the prefix of the keys and the method; without them the class has those
        of its base.
        """
        cls.prefix = cls.prefix if prefix is None else prefix
        cls.method = cls.method if method is None else method

    @classmethod
    def key(cls, name: str) -> str:
        """Return the key of a field."""
        return cls.prefix + kebab(name)

    @classmethod
    @cache
    def parts(cls) -> list[tuple[Field[Any], str]]:
        """Return all fields with their keys: several classes are read in a message."""
        return [(part, cls.key(part.name)) for part in fields(cls)]

    @classmethod
    def keys(cls) -> list[str]:
        """Return the keys of all fields."""
        return [key for _, key in cls.parts()]

    @classmethod
    def of(cls, options: object) -> Self:
        """Return the declaration with the values of the options of the same names."""
        return cls(**{part.name: getattr(options, part.name) for part in fields(cls)})

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Read what a server sent. Raises ``ValueError`` if a field without a default
        is missing.
        """
        arguments = {}
        for part, key in cls.parts():
            if key in config:
                value = config[key]
                arguments[part.name] = part.type(value) if part.type in CASTS else value
            elif part.default is MISSING:
                raise ValueError(
                    f"{key!r} is missing in the configuration: the server's strategy must send "
                    f"{cls.__name__}"
                )
        try:
            made: Self = _made(cls, *arguments.items())  # type: ignore[arg-type]
            return made
        except TypeError:  # a list among the values
            return cls(**arguments)

    def to_config(self) -> dict[str, Any]:
        """Return the fields by their keys in a message's configuration."""
        named = {self.key(part.name): getattr(self, part.name) for part in fields(self)}
        return {key: value for key, value in named.items() if value is not None}


@lru_cache(1024)
def _made(kind: type[AnySent], *arguments: tuple[str, Any]) -> AnySent:
    """Return the declaration with these values: all clients of a round get the same."""
    return kind(**dict(arguments))


#: What client classes declare as ``reads``.
Reads = tuple[type[Sent], ...]


@dataclass(frozen=True)
class RoundFacts(Sent):
    """What the round loop sends with every message; ``seed`` and ``server_round`` key
    the client's random draws.
    """

    seed: int = 0
    server_round: int = 1
    num_rounds: int = 0
    #: The first round of this run, and the round of its last checkpoint. Clients ignore
    #: what they stored in later rounds of an interrupted run.
    first_round: int = 1
    checkpoint_round: int | None = None
    #: Other rounds of which clients must keep what they stored until then.
    kept_rounds: Sequence[int] = ()


@dataclass(frozen=True)
class Asked(Sent):
    """Metrics that the server asks for: the training loss of the received model before
    training, and in an evaluation.
    """

    loss_before: bool | None = None
    train_loss: bool | None = None


@dataclass(frozen=True)
class PartialWork(Sent, prefix="work-"):
    """Work that a client does in part, so as not to be late
    (``strategies.base.partial_work``).

    In a training message: the share of the round's samples times epochs that it may go
    through, in whole steps; or the seconds that it may take for its steps. In the
    metrics of the reply: the share that it went through and, if it was given seconds,
    how many it took.
    """

    share: float | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Scoring(Sent):
    """What the adapter of any client reads for an evaluation: whether to report scores
    on the validation samples, and the counts of actual and predicted classes.
    """

    validation: bool = False
    class_counts: bool = False


@dataclass(frozen=True)
class ProximalSent(Sent, prefix="proximal-", method="fedprox"):
    """What FedProx and SuPerFed send: the weight of the proximal term."""

    mu: float = 0.0


@dataclass(frozen=True)
class FedDynSent(Sent, prefix="feddyn-", method="feddyn"):
    """What FedDyn sends."""

    alpha: float


@dataclass(frozen=True)
class ScaffoldSent(Sent, method="scaffold"):
    """SCAFFOLD sends its control variates beside the model, and no options."""


@dataclass(frozen=True)
class WarmStartSent(Sent, prefix="warm-start-"):
    """Which half of a warm start is in charge of the round: "first" or "then"."""

    half: str | None = None

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


# Personalised methods.
@dataclass(frozen=True)
class LocalSent(Sent, prefix="local-"):
    """The share of a round's steps that a client takes when it trains alone."""

    share: float = 1.0


#: The numbers of epochs among which fine-tuning chooses.
FINETUNE_EPOCHS = (0, 1, 2, 4, 8)


@dataclass(frozen=True)
class FinetuneSent(Sent, prefix="finetune-", method="finetune"):
    """How a client trains before it is scored; -1 epochs ask for the validation losses
    after each of :data:`FINETUNE_EPOCHS`.
    """

    epochs: int
    rate: float


@dataclass(frozen=True)
class ShareSent(Sent):
    """Which part of the model is shared: "body" or "head"."""

    share: str


@dataclass(frozen=True)
class FedRepSent(Sent, prefix="fedrep-", method="fedrep"):
    """The epochs of FedRep's two parts."""

    head_epochs: int
    body_epochs: int


@dataclass(frozen=True)
class PatternsSent(Sent, prefix="partial-"):
    """Name patterns of the shared arrays, and of the arrays that clients keep."""

    share: str
    keep: str


@dataclass(frozen=True)
class FedBABUSent(Sent, prefix="fedbabu-", method="fedbabu"):
    """How FedBABU's clients fine-tune before they are scored."""

    epochs: int
    part: str


@dataclass(frozen=True)
class APFLScoring(Sent, prefix="apfl-", method="apfl"):
    """The initial weight of the personal model, used until a client learns its own."""

    alpha: float


@dataclass(frozen=True)
class APFLTraining(APFLScoring):
    """The same, and whether clients learn it."""

    adaptive: bool


@dataclass(frozen=True)
class PFedMeSent(Sent, prefix="pfedme-", method="pfedme"):
    """What pFedMe sends for training."""

    lambda_: float
    rate: float
    inner_steps: int
    batches: str = "next"


#: The weights mu among which Ditto's clients choose, the most federated first.
DITTO_MUS = (2.0, 1.0, 0.1)


@dataclass(frozen=True)
class DittoSent(Sent, prefix="ditto-", method="ditto"):
    """What Ditto sends. ``choose``: a client trains a personal model with each of
    :data:`DITTO_MUS` and is scored with that of mu; mu = -1 asks for their validation
    losses.
    """

    mu: float
    epochs: int
    choose: bool = False


@dataclass(frozen=True)
class FedALASent(Sent, prefix="fedala-", method="fedala"):
    """How FedALA's clients learn the weights of their initial mixture."""

    layers: int
    rate: float
    samples: float
    start_epochs: int


@dataclass(frozen=True)
class FedRoDSent(Sent, method="fedrod"):
    """Fed-RoD sends no options."""


@dataclass(frozen=True)
class IFCASent(Sent, prefix="ifca-", method="ifca"):
    """The number of cluster models, and which of them the message holds, in this order;
    clients initialise the others themselves.
    """

    clusters: int
    sent: Sequence[int] = (0,)


@dataclass(frozen=True)
class FlocoSent(Sent, prefix="floco-", method="floco"):
    """The number of corners, the places of the arrays that have them, and how far from
    ``point`` (``None``: everywhere) a client trains.
    """

    corners: int
    at: Sequence[int]
    radius: float
    point: Sequence[float] | None = None


@dataclass(frozen=True)
class FedProtoSent(Sent, prefix="fedproto-", method="fedproto"):
    """What FedProto and FedTGP send: the pull to the prototypes."""

    lambda_: float


@dataclass(frozen=True)
class FedMDSent(Sent, prefix="fedmd-", method="fedmd"):
    """The epochs for which clients fit the consensus; 0: there is none yet."""

    epochs: int


@dataclass(frozen=True)
class FedMDFGSent(Sent, prefix="fedmdfg-", method="fedmdfg"):
    """The steps after which an evaluation asks for losses; none: it scores."""

    steps: Sequence[float] = ()


@dataclass(frozen=True)
class PerFedAvgTraining(Sent, prefix="per-fedavg-", method="per-fedavg"):
    """The rate of adaptation, and the treatment of the Hessian."""

    alpha: float
    hessian: str


@dataclass(frozen=True)
class PerFedAvgScoring(Sent, prefix="per-fedavg-", method="per-fedavg"):
    """The rate of adaptation, and its number of steps."""

    alpha: float
    steps: int


@dataclass(frozen=True)
class SuPerFedTraining(Sent, prefix="superfed-", method="superfed"):
    """What SuPerFed sends for training. ``mixing``: "none" | "model" | "layer"."""

    nu: float = 0.0
    step_scale: float = 1.0
    init: str = "own"
    mixing: str = "none"


#: The lambdas at which SuPerFed's clients are scored; what a server sends in place of
#: one to ask for the validation losses at each.
LAMBDAS = [i / 10 for i in range(11)]
ASKED = -1.0
#: The lambdas of the federated and the personal model.
ENDS = (0.0, 1.0)


@dataclass(frozen=True)
class SuPerFedScoring(SuPerFedTraining):
    """What SuPerFed sends for evaluation. ``lambda_``: of the mixture to score; -1: the
    server asks for the validation losses; ``None``: the client chooses. ``tune``: the
    epochs for which that mixture is trained; of a question, the two models at the ends.
    """

    catch_up: int = 0
    lambda_: float | None = None
    tune: int = 0


# Fair methods.
@dataclass(frozen=True)
class PropFairSent(Sent, prefix="propfair-", method="propfair"):
    """What PropFair sends: M of the loss ``-log(1 - l / M)``."""

    m: float


# Ensembles.
@dataclass(frozen=True)
class CollectingSent(Sent):
    """``phase`` = "train-predictor": the clients train the predictors first."""

    phase: str = ""


@dataclass(frozen=True)
class PredictorsSent(Sent):
    """Names of the arrays of the predictors that a message holds."""

    predictor_arrays: list[str]


@dataclass(frozen=True)
class FENSSent(Sent, prefix="fens-"):
    """Names of the arrays of the predictors that a message holds after the aggregator;
    none for a client that has their outputs.
    """

    predictors: Sequence[str] = ()


@dataclass(frozen=True)
class DrawSent(Sent):
    """The number of the draw of predictors within the round. If clients keep a cache,
    also its size, the contents that the server expects, and the hashes of the drawn
    predictors; the message holds those in ``new``.
    """

    draw: int
    cache: int | None = None
    cache_holds: int | None = None
    hashes: list[str] | None = None
    new: list[int] | None = None


@dataclass(frozen=True)
class MixturesSent(Sent):
    """Whether an evaluation sends two mixtures of densities instead of predictors."""

    mixtures: bool


# Constrained methods.
@dataclass(frozen=True)
class PhaseSent(Sent):
    """``phase``: "prepare" asks for the sums of ``stage``, "evaluate" for the measures;
    if there is none, clients train.
    """

    phase: str | None = None
    stage: str | None = None


@dataclass(frozen=True)
class FedFWSent(Sent):
    """The steps of a FedFW round."""

    etas: list[float]
    lambdas: list[float]
    rhos: list[float]
    dual_step: float
    num_clients: int
    variant: str
    batch_size: int
    stochastic: bool


@dataclass(frozen=True)
class FedFWExtras(Sent):
    """Whether the message holds the mean of the dual variables after the point, and
    whether the client must send its state.
    """

    dual_mean: bool | None = None
    resync: bool | None = None


@dataclass(frozen=True)
class DFWTraceSent(Sent):
    """The side of the gradient on which it is multiplied by the vector."""

    side: str


@dataclass(frozen=True)
class ProjectedSent(Sent):
    """The steps of a round of FedAvg with projection."""

    learning_rate: float
    local_steps: int
    batch_size: int


# Boosting.
@dataclass(frozen=True)
class OracleSent(Sent, prefix="oracle-"):
    """How FFGB-distill's clients fit a weak learner."""

    epochs: int
    batch_size: int
    learning_rate: float


@dataclass(frozen=True)
class FunctionSent(Sent):
    """A message holds the learners of FFGB's function after version ``base``, up to
    ``version``.
    """

    base: int
    version: int
    loss: str
    learner_arrays: list[str] | None = None
    clip: float | None = None


@dataclass(frozen=True)
class FFGBTraining(Sent):
    """The steps of an FFGB round. ``lipschitz``: the constant, for FFGB.L."""

    variant: str
    etas: list[float]
    mu: float
    residual: bool
    clip_residual: float | None = None
    lipschitz: float = 0.0


@dataclass(frozen=True)
class HistogramSent(Sent):
    """The loss of histogram boosting and, for training, the number of sums to send."""

    loss: str
    sums: int | None = None


@dataclass(frozen=True)
class LocalBoostingSent(Sent, prefix="local-boosting-", method="local-boosting"):
    """How a client grows its own trees."""

    loss: str
    depth: int
    learning_rate: float
    min_leaf: int
    l2: float
    bins: int


# Synthetic samples.
@dataclass(frozen=True)
class FedEvgSent(Sent, prefix="evg-"):
    """The options of a FedEvg client's steps.

    ``low``: the least value of the images.
    """

    lambda_: float
    langevin_steps: int
    step: float
    noise: float
    clip: float
    weights: str
    persistent: bool
    low: float


@dataclass(frozen=True)
class FedDMSent(Sent, prefix="dm-"):
    """The options of a FedDM client's steps. ``low``: the least value of the images."""

    images: int
    steps: int
    rate: float
    radius: float
    low: float

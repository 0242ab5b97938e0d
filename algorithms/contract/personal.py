"""What personalised methods send their clients (``algorithms.contract.sent``)."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedapps.algorithms.contract.sent import Sent


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

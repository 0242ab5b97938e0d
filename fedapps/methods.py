"""Every method, by name: its two halves, its options and what it runs on. To add a method, add an entry (see CONTRIBUTING.md)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, make_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from flwr.client import NumPyClient
from flwr.serverapp.strategy import Strategy

from algorithms.checks import check_choice
from algorithms.seeds import derived_seed
from clients import (
    APFLClient,
    DittoClient,
    FedAvgClient,
    FedCGANClient,
    FedCVAEClient,
    FedDynClient,
    FedEvgClient,
    FedFWClient,
    FedProxClient,
    FedRepClient,
    FFGBClient,
    FFGBDistillClient,
    LocalClient,
    PartialClient,
    PFedMeClient,
    ProjectedClient,
    PropFairClient,
    ScaffoldClient,
    SuPerFedClient,
    TwoPhaseClient,
)
from clients.constrained import ConstrainedClient
from clients.fedboost import FedBoostClient
from clients.store import Store
from fedapps.errors import UserError
from fedapps.generative_nets import ACGAN, CVAE, ENERGY_NETS, build_energy_net, build_generator
from fedapps.learners import check_learner, oracle_of
from fedapps.library import Library
from fedapps.public_data import distiller_of
from fedapps.synthetic import SetJudge
from strategies import (
    AFL,
    APFL,
    FFGB,
    TERM,
    AAggFFD,
    AAggFFOptions,
    AAggFFS,
    AFLBoost,
    AFLBoostOptions,
    AFLOptions,
    APFLOptions,
    Ditto,
    DittoOptions,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgDistill,
    FedAvgDistillOptions,
    FedAvgOptions,
    FedBoost,
    FedBoostOptions,
    FedDyn,
    FedDynOptions,
    FedEvg,
    FedEvgOptions,
    FedFW,
    FedFWOptions,
    FedGenerator,
    FedMGDA,
    FedMGDAOptions,
    FedOptOptions,
    FedProx,
    FedProxOptions,
    FedRep,
    FedRepOptions,
    FedYogi,
    FFGBDistill,
    FFGBDistillOptions,
    FFGBOptions,
    GeneratorOptions,
    Local,
    PartialSharing,
    PFedMe,
    PFedMeOptions,
    Private,
    ProjectedFedAvg,
    ProjectedOptions,
    PropFair,
    PropFairOptions,
    QFedAvg,
    QFedAvgOptions,
    Scaffold,
    ScaffoldOptions,
    SuPerFed,
    SuPerFedOptions,
    TERMOptions,
    WarmStart,
    WarmStartOptions,
)
from strategies.contents import innermost

if TYPE_CHECKING:
    from fedapps.classification import Classification
    from fedapps.settings import Settings


@dataclass(frozen=True)
class Method:
    """One method.

    Two halves: ``strategy(options, task, seed) -> Strategy``; ``client(task, client_id, num_clients, store) -> NumPyClient``. Or
    ``wrap(strategy, options) -> Strategy``: it decides the weights of another method, which its options name as ``base``, and has the
    halves of that one. Or none of these: warm-start has the halves of two others. ``all_clients``: every client takes part in every
    round. ``public``: the server distils on its unlabelled images (table ``public``). ``options``: dataclass of the method's own
    table, or ``None``; ``tasks``: what it can run on, the first is its default; ``defaults``: settings of its small default job where
    they differ from everyone's. ``model``: what ``model.name = "auto"`` means, where it is not the task's own.
    ``synthetic``: it makes a set of images (table ``synthetic``), and the model is the classifier that is trained on it.
    """

    summary: str
    paper: str
    trait: str
    strategy: Callable[[Any, Any, int], Strategy] | None = None
    client: Callable[[Any, int | str, int, Store], NumPyClient] | None = None
    wrap: Callable[[Strategy, Any], Strategy] | None = None
    all_clients: bool = False
    public: bool = False
    options: type | None = None
    table: str = ""
    tasks: tuple[str, ...] = ("classification", "digits", "tabular", "text", "speech", "text-pairs", "words")
    defaults: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    model: str = ""
    synthetic: bool = False


def torch_client(kind: type[FedAvgClient]) -> Callable[[Any, int | str, int, Store], NumPyClient]:
    """Return a factory of clients that train the task's torch model."""

    def build(task: "Classification", client_id: int | str, num_clients: int, store: Store) -> NumPyClient:
        data = task.client_data(client_id, num_clients)
        return kind(task.model_fn, data, client_id, store, task.work_model(), task.objective)

    return build


def sharing(share: str) -> Callable[[Any, Any, int], Strategy]:
    """Return a factory of the server half that shares one part of the task's model: "body" or "head"."""

    def build(options: FedRepOptions | None, task: Any, seed: int) -> Strategy:
        model = task.work_model()
        strategy = FedRep(model.head, options) if options else PartialSharing(model.head, share)
        try:
            strategy.check(list(model.state_dict()))
        except ValueError as error:
            raise UserError(f"model.name = {task.settings.model.name!r}: {error}") from None
        return strategy

    return build


def pfedme(options: PFedMeOptions, task: Any, seed: int) -> Strategy:
    """Return the server half of pFedMe. Raises ``UserError`` where the step of w_i would go beyond theta_i."""
    rate = options.rate or task.settings.train.learning_rate
    if options.lambda_ * rate > 1:
        raise UserError(
            f"pfedme.lambda = {options.lambda_:g}, but the rate is {rate:g}: their product must be at most 1: choose "
            f"pfedme.rate = {1 / options.lambda_:.3g} or less"
        )
    return PFedMe(options)


def ensemble_client(task: Any, client_id: int | str, num_clients: int, store: Store) -> NumPyClient:
    """Return a client that scores ensembles on the task's samples."""
    return FedBoostClient(task.client_data(client_id, num_clients), store)


def library_of(task: Any, options: FedBoostOptions) -> Any:
    """Return the task's predictors, those of a folder, or what makes a library of the clients' own."""
    if options.library == "clients":
        return Library.from_arrays
    if options.library == "task":
        return task.library()
    library = Library.open(options.library)
    task.check_library(library)
    return library


def constrained_client(kind: type[ConstrainedClient]) -> Callable[[Any, int | str, int, Store], NumPyClient]:
    """Return a factory of clients with the task's f_i and domain."""

    def build(task: Any, client_id: int | str, num_clients: int, store: Store) -> NumPyClient:
        return kind(task.problem(client_id, num_clients), task.domain, client_id, store)

    return build


def frank_wolfe(variant: str) -> Callable[[Any, Any, int], Strategy]:
    """Return a factory of the server half of a variant; the task says what the options leave to it."""

    def build(options: FedFWOptions, task: Any, seed: int) -> Strategy:
        lambda_0 = task.lambda_0[variant == "fedfw-plus"]
        return FedFW(task.domain, options, variant, lambda_0=lambda_0, measure=task.measure)

    return build


def boosting(variant: str) -> Callable[[Any, Any, int], Strategy]:
    """Return a factory of the server half of a form of FFGB."""

    def build(options: FFGBOptions, task: Any, seed: int) -> Strategy:
        check_learner(options, variant)
        rounds = task.settings.num_rounds
        if options.at_once and rounds > 1:
            raise ValueError(f"at-once = {options.at_once}, num-rounds = {rounds}: there is one round, set num-rounds = 1")
        return FFGB(options, variant)

    return build


def boosting_client(variant: str) -> Callable[[Any, int | str, int, Store], NumPyClient]:
    """Return a factory of clients that fit the weak learners of a form of FFGB."""

    def build(task: Any, client_id: int | str, num_clients: int, store: Store) -> NumPyClient:
        data, oracle = task.client_data(client_id, num_clients), oracle_of(task, task.settings.options, variant)
        return FFGBClient(data, oracle, task.num_outputs, client_id, store, task.objective)

    return build


def evg_strategy(options: FedEvgOptions, task: "Classification", seed: int) -> Strategy:
    """Return the server half of FedEvg on the task's images."""
    check_choice("net", options.net, ENERGY_NETS)
    judge = SetJudge(task)
    judge.check()
    return FedEvg(task.image_shape, task.num_outputs, judge, options, task.settings.synthetic.samples, seed)


def evg_client(task: "Classification", client_id: int | str, num_clients: int, store: Store) -> NumPyClient:
    """Return a client with an energy net of its own."""
    shape, name = task.image_shape, task.settings.options.net

    def net_fn(seed: int) -> Any:
        return build_energy_net(name, shape, task.num_outputs, seed).to(task.device)

    data = task.client_data(client_id, num_clients)
    return FedEvgClient(net_fn, task.model_fn, data, client_id, store, task.work_model(), task.objective)


def generator_of(kind: type, task: "Classification", seed: int) -> Any:
    """Return a generative net for the task's images, with weights drawn from ``seed``."""
    shape, hidden = task.image_shape, task.settings.options.hidden
    return build_generator(kind, shape, task.num_outputs, hidden, seed).to(task.device)


def generator_strategy(kind: type) -> Callable[[Any, Any, int], Strategy]:
    """Return a factory of the server half that averages such nets."""

    def build(options: GeneratorOptions, task: "Classification", seed: int) -> Strategy:
        judge = SetJudge(task)
        judge.check()
        net = generator_of(kind, task, derived_seed(seed, "model"))
        return FedGenerator(net, judge, task.num_outputs, task.settings.synthetic.samples, seed)

    return build


def generator_client(half: Any, kind: type) -> Callable[[Any, int | str, int, Store], NumPyClient]:
    """Return a factory of clients that train such a net."""

    def build(task: "Classification", client_id: int | str, num_clients: int, store: Store) -> NumPyClient:
        data, net = task.client_data(client_id, num_clients), generator_of(kind, task, 0)
        client: NumPyClient = half(net, task.model_fn, data, client_id, store, task.work_model(), task.objective)
        return client

    return build


# Methods that start from the task's torch model and send one like it to the clients: those that a warm start can compose.
COMPOSABLE = (
    "fedavg", "fedprox", "fedadam", "fedyogi", "fedadagrad", "aaggff-s", "aaggff-d", "afl", "q-fedavg", "term", "fedmgda", "propfair",
    "superfed-mm", "superfed-lm", "apfl", "pfedme", "ditto", "scaffold", "feddyn", "ffgb-distill", "fedavg-distill",
)  # fmt: skip


class TwoMethods(WarmStartOptions):
    """A warm start's options, with names of methods."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("first", self.first, COMPOSABLE)
        check_choice("then", self.then, COMPOSABLE)


# Methods whose weights another one can decide.
BASES = ("fedavg", "fedprox", "fedadam", "fedyogi", "fedadagrad")


def with_base(kind: type) -> type:
    """Return options like ``kind`` that also name, as ``base``, the method whose weights are decided."""

    def check(self: Any) -> None:
        kind.__post_init__(self)  # type: ignore[attr-defined]
        check_choice("base", self.base, BASES)

    return make_dataclass(
        kind.__name__, [("base", str, "fedavg")], bases=(kind,), namespace={"__post_init__": check}, frozen=True
    )


def base_of(settings: "Settings") -> Method:
    """Return the method whose two halves a run uses: its own, or the one whose weights it decides."""
    method = METHODS[settings.method]
    return METHODS[settings.options.base] if method.wrap else method


def build_strategy(settings: "Settings", task: Any) -> Strategy:
    """Return the server half. Raises ``UserError`` where a bound on updates, or their privacy, does not go with the method."""
    strategy = _strategy(settings, task)
    halves = [strategy.first, strategy.then] if isinstance(strategy, WarmStart) else [strategy]
    for kind in (type(innermost(half)) for half in halves):
        updates = getattr(kind, "replies_like_model", False) or hasattr(kind, "replies_are_updates")
        if settings.max_update_norm and not updates:
            raise UserError(
                f"max-update-norm = {settings.max_update_norm}: the clients of this method send no updates that have a norm: choose 0"
            )
    try:
        return Private(strategy, settings.dp) if settings.dp.noise_multiplier else strategy
    except ValueError as error:
        raise UserError(f"dp.{error}") from None


def _strategy(settings: "Settings", task: Any) -> Strategy:
    if settings.halves:
        first, then = (_strategy(half, task) for half in settings.halves)
        return WarmStart(first, settings.options.rounds, then)
    method, base = METHODS[settings.method], base_of(settings)
    assert base.strategy is not None
    if method.wrap is None:
        return base.strategy(settings.options, task, settings.seed)
    return method.wrap(base.strategy(settings.base_options, task, settings.seed), settings.options)


def build_client(settings: "Settings", task: Any, client_id: int | str, num_clients: int, store: Store) -> NumPyClient:
    """Return a client half."""
    if settings.halves:
        builders = [partial(build_client, half, task, client_id, num_clients, store) for half in settings.halves]
        return TwoPhaseClient(dict(zip(("first", "then"), builders, strict=True)))
    base = base_of(settings)
    assert base.client is not None
    return base.client(task, client_id, num_clients, store)


ENSEMBLE_TASKS = ("point-mass", "unigram", "ensemble-classification")
ENSEMBLE_JOB = {"num-clients": 100, "clients-per-round": 0, "num-rounds": 200, "evaluate-every": 20, "checkpoint-every": 100}

CONSTRAINED_TASKS = ("lasso", "sparse-logistic", "matrix-completion", "qap", "constrained-classification")
CONSTRAINED_JOB: dict[str, bool | int | float | str] = {
    "num-clients": 10,
    "clients-per-round": 0,
    "num-rounds": 300,
    "evaluate-every": 20,
    "checkpoint-every": 50,
    "data.partition": "iid",
}

BOOSTED_TASKS = ("classification", "digits", "tabular")

IMAGE_TASKS = ("classification", "digits")
SYNTHETIC_JOB: dict[str, bool | int | float | str] = {
    "num-clients": 10,
    "clients-per-round": 0,
    "data.partition": "dirichlet",
    "data.alpha": 1.0,
    "data.validation": 0.0,
    "train.learning-rate": 0.001,
    "train.lr-decay": 0.9,
    "train.lr-decay-every": 50,
    "train.local-epochs": 1,
    "train.batch-size": 64,
}

METHODS: dict[str, Method] = {
    "fedavg": Method(
        summary="weighted average of the clients' models",
        paper="McMahan et al. 2017",
        trait="one global model",
        strategy=lambda options, task, seed: FedAvg(weights=options.weights),
        client=torch_client(FedAvgClient),
        options=FedAvgOptions,
        table="fedavg",
    ),
    "fedprox": Method(
        summary="FedAvg with a squared proximal term that keeps clients near the global model",
        paper="Li et al. 2020",
        trait="one global model",
        strategy=lambda options, task, seed: FedProx(options),
        client=torch_client(FedProxClient),
        options=FedProxOptions,
        table="fedprox",
    ),
    "scaffold": Method(
        summary="control variates take the drift out of the clients' steps",
        paper="Karimireddy et al. 2020",
        trait="one global model",
        strategy=lambda options, task, seed: Scaffold(options),
        client=torch_client(ScaffoldClient),
        options=ScaffoldOptions,
        table="scaffold",
    ),
    "fedadam": Method(
        summary="the server takes the mean update as a gradient for Adam",
        paper="Reddi et al. 2021",
        trait="one global model",
        strategy=lambda options, task, seed: FedAdam(options),
        client=torch_client(FedAvgClient),
        options=FedOptOptions,
        table="fedopt",
    ),
    "fedyogi": Method(
        summary="the same for Yogi",
        paper="Reddi et al. 2021",
        trait="one global model",
        strategy=lambda options, task, seed: FedYogi(options),
        client=torch_client(FedAvgClient),
        options=FedOptOptions,
        table="fedopt",
    ),
    "fedadagrad": Method(
        summary="the same for Adagrad",
        paper="Reddi et al. 2021",
        trait="one global model",
        strategy=lambda options, task, seed: FedAdagrad(options),
        client=torch_client(FedAvgClient),
        options=FedOptOptions,
        table="fedopt",
    ),
    "aaggff-s": Method(
        summary="weights of all clients decided by the online Newton step, around another method",
        paper="Hahn 2024 (AAggFF-S)",
        trait="re-weights",
        wrap=AAggFFS,
        all_clients=True,
        options=with_base(AAggFFOptions),
        table="aaggff",
        defaults={"clients-per-round": 0},
    ),
    "aaggff-d": Method(
        summary="weights of sampled clients decided by the regularised leader, around another method",
        paper="Hahn 2024 (AAggFF-D)",
        trait="re-weights",
        wrap=AAggFFD,
        options=with_base(AAggFFOptions),
        table="aaggff",
    ),
    "afl": Method(
        summary="weights climb the losses: the model for the worst mixture of clients",
        paper="Mohri et al. 2019",
        trait="re-weights",
        wrap=AFL,
        options=with_base(AFLOptions),
        table="afl",
    ),
    "q-fedavg": Method(
        summary="clients count by a power of their loss, the step by a Lipschitz estimate",
        paper="Li et al. 2020 (q-FFL)",
        trait="re-weights",
        strategy=lambda options, task, seed: QFedAvg(options),
        client=torch_client(FedAvgClient),
        options=QFedAvgOptions,
        table="q-fedavg",
    ),
    "term": Method(
        summary="clients count by the exponential of their loss",
        paper="Li et al. 2021",
        trait="re-weights",
        wrap=TERM,
        options=with_base(TERMOptions),
        table="term",
    ),
    "fedmgda": Method(
        summary="shortest mixture of the clients' unit updates (FedMGDA+)",
        paper="Hu et al. 2022",
        trait="re-weights",
        strategy=lambda options, task, seed: FedMGDA(options),
        client=torch_client(FedAvgClient),
        options=FedMGDAOptions,
        table="fedmgda",
    ),
    "propfair": Method(
        summary="clients minimise -log(M - loss): proportional fairness",
        paper="Zhang et al. 2022",
        trait="re-weights",
        strategy=lambda options, task, seed: PropFair(options),
        client=torch_client(PropFairClient),
        options=PropFairOptions,
        table="propfair",
    ),
    "local": Method(
        summary="no federation: every client trains alone",
        paper="baseline",
        trait="personalises",
        strategy=lambda options, task, seed: Local(),
        client=torch_client(LocalClient),
    ),
    "superfed-mm": Method(
        summary="federated and personal model mixed at random, one weight a model",
        paper="Hahn et al. 2022 (SuPerFed-MM)",
        trait="personalises",
        strategy=lambda options, task, seed: SuPerFed(options, mixing="model"),
        client=torch_client(SuPerFedClient),
        options=SuPerFedOptions,
        table="superfed",
    ),
    "superfed-lm": Method(
        summary="federated and personal model mixed at random, one weight a layer",
        paper="Hahn et al. 2022 (SuPerFed-LM)",
        trait="personalises",
        strategy=lambda options, task, seed: SuPerFed(options, mixing="layer"),
        client=torch_client(SuPerFedClient),
        options=SuPerFedOptions,
        table="superfed",
    ),
    "fedper": Method(
        summary="averages the body of the model; every client keeps its own head",
        paper="Arivazhagan et al. 2019",
        trait="personalises",
        strategy=sharing("body"),
        client=torch_client(PartialClient),
    ),
    "lg-fedavg": Method(
        summary="averages the head of the model; every client keeps its own body",
        paper="Liang et al. 2020",
        trait="personalises",
        strategy=sharing("head"),
        client=torch_client(PartialClient),
    ),
    "fedrep": Method(
        summary="FedPer whose clients first fit their head, then the body",
        paper="Collins et al. 2021",
        trait="personalises",
        strategy=sharing("body"),
        client=torch_client(FedRepClient),
        options=FedRepOptions,
        table="fedrep",
    ),
    "apfl": Method(
        summary="a mixture of the global model and the client's own, its weight fixed or learned",
        paper="Deng, Kamani, Mahdavi 2020",
        trait="personalises",
        strategy=lambda options, task, seed: APFL(options),
        client=torch_client(APFLClient),
        options=APFLOptions,
        table="apfl",
    ),
    "pfedme": Method(
        summary="personal models near the global one, which descends their Moreau envelopes",
        paper="Dinh, Tran, Nguyen 2020",
        trait="personalises",
        strategy=pfedme,
        client=torch_client(PFedMeClient),
        options=PFedMeOptions,
        table="pfedme",
    ),
    "ditto": Method(
        summary="FedAvg, and beside it a personal model that is pulled to the global one",
        paper="Li et al. 2021",
        trait="personalises",
        strategy=lambda options, task, seed: Ditto(options),
        client=torch_client(DittoClient),
        options=DittoOptions,
        table="ditto",
    ),
    "fedboost": Method(
        summary="weights of an ensemble of pre-trained predictors, a few of them sent a round",
        paper="Hamer, Mohri, Suresh 2020",
        trait="boosts",
        strategy=lambda options, task, seed: FedBoost(library_of(task, options), options, seed),
        client=ensemble_client,
        options=FedBoostOptions,
        table="fedboost",
        tasks=ENSEMBLE_TASKS,
        defaults=ENSEMBLE_JOB,
    ),
    "aflboost": Method(
        summary="FedBoost for the worst client: weights of clients rise with their losses",
        paper="Hamer, Mohri, Suresh 2020",
        trait="boosts, re-weights",
        strategy=lambda options, task, seed: AFLBoost(library_of(task, options), options, seed),
        client=ensemble_client,
        options=AFLBoostOptions,
        table="aflboost",
        tasks=ENSEMBLE_TASKS,
        defaults=ENSEMBLE_JOB,
    ),
    "ffgb": Method(
        summary="functional gradient boosting: clients add weak learners fitted to their gradients",
        paper="Shen et al. 2022",
        trait="boosts",
        strategy=boosting("ffgb"),
        client=boosting_client("ffgb"),
        options=FFGBOptions,
        table="ffgb",
        tasks=BOOSTED_TASKS,
    ),
    "ffgb-c": Method(
        summary="FFGB with everything clipped: for features that differ between clients",
        paper="Shen et al. 2021 (FFGB.C)",
        trait="boosts",
        strategy=boosting("ffgb-c"),
        client=boosting_client("ffgb-c"),
        options=FFGBOptions,
        table="ffgb",
        tasks=BOOSTED_TASKS,
    ),
    "ffgb-l": Method(
        summary="FFGB for the square loss over Lipschitz functions; can be done in one round",
        paper="Shen et al. 2021 (FFGB.L)",
        trait="boosts",
        strategy=boosting("ffgb-l"),
        client=boosting_client("ffgb-l"),
        options=FFGBOptions,
        table="ffgb",
        tasks=BOOSTED_TASKS,
    ),
    "fedfw": Method(
        summary="federated Frank-Wolfe: constraints without projections, clients send a few numbers",
        paper="Dadras, Prakhya, Yurtsever 2022",
        trait="constrains",
        strategy=frank_wolfe("fedfw"),
        client=constrained_client(FedFWClient),
        options=FedFWOptions,
        table="fedfw",
        tasks=CONSTRAINED_TASKS,
        defaults=CONSTRAINED_JOB,
    ),
    "fedfw-plus": Method(
        summary="FedFW with dual variables: closer to consensus, faster",
        paper="Dadras, Prakhya, Yurtsever 2022 (FedFW+)",
        trait="constrains",
        strategy=frank_wolfe("fedfw-plus"),
        client=constrained_client(FedFWClient),
        options=FedFWOptions,
        table="fedfw",
        tasks=CONSTRAINED_TASKS,
        defaults=CONSTRAINED_JOB,
    ),
    "naive-fw": Method(
        summary="local Frank-Wolfe steps, averaged: a baseline that fails",
        paper="Dadras, Prakhya, Yurtsever 2022 (equation 3)",
        trait="constrains",
        strategy=frank_wolfe("naive-fw"),
        client=constrained_client(FedFWClient),
        options=FedFWOptions,
        table="fedfw",
        tasks=CONSTRAINED_TASKS,
        defaults=CONSTRAINED_JOB,
    ),
    "projected-fedavg": Method(
        summary="FedAvg with a projection onto the constraint after every step",
        paper="baseline",
        trait="constrains",
        strategy=lambda options, task, seed: ProjectedFedAvg(
            task.domain, options, learning_rate=task.learning_rate, measure=task.measure
        ),
        client=constrained_client(ProjectedClient),
        options=ProjectedOptions,
        table="projected",
        tasks=CONSTRAINED_TASKS,
        defaults=CONSTRAINED_JOB,
    ),
    "ffgb-distill": Method(
        summary="boosting of functions: clients send weak learners, the server distils the ensemble into one network",
        paper="Shen et al. 2022 (FFGB-distill)",
        trait="boosts",
        strategy=lambda options, task, seed: FFGBDistill(distiller_of(task), options, seed),
        client=torch_client(FFGBDistillClient),
        options=FFGBDistillOptions,
        table="ffgb-distill",
        tasks=IMAGE_TASKS,
        public=True,
        defaults={"clients-per-round": 0},
    ),
    "fedavg-distill": Method(
        summary="FedAvg whose server distils the clients' mean output instead of averaging parameters",
        paper="Lin et al. 2020",
        trait="one global model",
        strategy=lambda options, task, seed: FedAvgDistill(distiller_of(task), options, seed),
        client=torch_client(FedAvgClient),
        options=FedAvgDistillOptions,
        table="fedavg-distill",
        tasks=IMAGE_TASKS,
        public=True,
        defaults={"clients-per-round": 0},
    ),
    "feddyn": Method(
        summary="linear corrections at clients and server make local and global optima agree",
        paper="Acar et al. 2021",
        trait="one global model",
        strategy=lambda options, task, seed: FedDyn(options),
        client=torch_client(FedDynClient),
        options=FedDynOptions,
        table="feddyn",
    ),
    "fedevg": Method(
        summary="a synthetic data set refined by the clients' energy signals: no network travels",
        paper="Hahn 2024 (FedEvg)",
        trait="makes data",
        strategy=evg_strategy,
        client=evg_client,
        options=FedEvgOptions,
        table="fedevg",
        tasks=IMAGE_TASKS,
        model="small-cnn",
        synthetic=True,
        defaults=SYNTHETIC_JOB,
    ),
    "fedcgan": Method(
        summary="a conditional GAN averaged over clients; the server draws synthetic data from it",
        paper="Rasouli et al. 2020 (FedGAN)",
        trait="makes data",
        strategy=generator_strategy(ACGAN),
        client=generator_client(FedCGANClient, ACGAN),
        options=GeneratorOptions,
        table="fedcgan",
        tasks=IMAGE_TASKS,
        model="small-cnn",
        synthetic=True,
        defaults=SYNTHETIC_JOB,
    ),
    "fedcvae": Method(
        summary="a conditional variational autoencoder averaged over clients, used likewise",
        paper="baseline of Hahn 2024",
        trait="makes data",
        strategy=generator_strategy(CVAE),
        client=generator_client(FedCVAEClient, CVAE),
        options=GeneratorOptions,
        table="fedcvae",
        tasks=IMAGE_TASKS,
        model="small-cnn",
        synthetic=True,
        defaults=SYNTHETIC_JOB,
    ),
    "warm-start": Method(
        summary="a few rounds of one method, by default FFGB-distill, then another one from that model",
        paper="Shen et al. 2022 (section 5)",
        trait="composes two methods",
        options=TwoMethods,
        table="warm-start",
        defaults={"clients-per-round": 0},
    ),
}

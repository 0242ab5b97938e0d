"""Methods that make a set of synthetic images: FedEvg, and averaged generators."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flwr.client import NumPyClient
from flwr.serverapp.strategy import Strategy

from algorithms.common.checks import check_choice
from algorithms.common.seeds import derived_seed
from clients import FedCGANClient, FedCVAEClient, FedEvgClient
from clients.base.store import Store
from fedapps.methods.method import IMAGE_TASKS, Method
from fedapps.models.generative_nets import ACGAN, CVAE, ENERGY_NETS, build_energy_net, build_generator
from fedapps.tasks.synthetic_sets import SetJudge
from strategies import FedEvg, FedEvgOptions, FedGenerator, GeneratorOptions

if TYPE_CHECKING:
    from fedapps.tasks.classification import Classification


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


METHODS: dict[str, Method] = {
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
}

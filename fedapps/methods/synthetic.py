"""Methods that produce a set of synthetic images: FedEvg, FedDM, class means, and
averaged generators (FedCGAN, FedCVAE).
"""

from typing import TYPE_CHECKING, Any

from flwr.client import NumPyClient
from flwr.serverapp.strategy import Strategy

from fedapps import clients
from fedapps.algorithms.common.options import check_choice
from fedapps.algorithms.common.seeds import derived_seed
from fedapps.methods.method import IMAGE_TASKS, ClientFactory, Method, StrategyFactory, TorchClient
from fedapps.models.options import names_of_nets, net_of
from fedapps.strategies import (
    ClassMeans,
    FedDM,
    FedEvg,
    FedEvgOptions,
    FedGenerator,
    GeneratorOptions,
)
from fedapps.tasks.context import RunContext

if TYPE_CHECKING:
    from fedapps.tasks.set_evaluator import SetEvaluator


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


#: An averaged generator needs hundreds of local steps, but few rounds: in each round
#: the whole generator is sent.
GENERATOR_JOB = {**SYNTHETIC_JOB, "num-rounds": 2, "train.local-epochs": 100}


def evaluator_of(task: Any) -> "SetEvaluator":
    """Return what scores a synthetic set. Raises ``UserError`` if the task's samples
    are not images.
    """
    from fedapps.tasks.set_evaluator import SetEvaluator

    evaluator = SetEvaluator(task)
    evaluator.check()
    return evaluator


def evg_strategy(options: FedEvgOptions, task: Any, context: RunContext) -> Strategy:
    """Return the FedEvg strategy for the task's images. Raises ``UserError`` if the
    synthetic set's options do not fit the task.
    """
    from fedapps.models.generative_nets import ENERGY_NETS

    for name in names_of_nets(options.net):
        check_choice("net", name, ENERGY_NETS)
    return FedEvg(
        task.image_shape,
        task.num_outputs,
        evaluator_of(task),
        options,
        context.synthetic.samples,
        context.seed,
    )


def evg_client(
    options: FedEvgOptions,
    task: Any,
    client_id: int | str,
    num_clients: int,
    store: "clients.Store",
) -> NumPyClient:
    """Return a FedEvg client, which has its own energy network. Architectures differ
    between clients if ``fedevg.net`` names several.
    """
    from fedapps.models.generative_nets import build_energy_net

    name = net_of(options.net, client_id)

    def net_fn(seed: int) -> Any:
        return build_energy_net(name, task.image_shape, task.num_outputs, seed).to(task.device)

    data = task.client_data(client_id, num_clients)
    return clients.FedEvgClient(
        net_fn, task.model_fn, data, client_id, store, task.work_model(), task.objective
    )


def set_client(kind: str) -> ClientFactory:
    """Return a factory of clients of class ``kind``. They evaluate the server's net,
    and send none: it is no ``TorchClient``.
    """
    return TorchClient(lambda: getattr(clients, kind)).__call__


def generator_of(name: str, options: GeneratorOptions, task: Any, seed: int) -> Any:
    """Return the generative network ``name`` ("acgan" or "cvae") for the task's images,
    initialised from ``seed``.
    """
    from fedapps.models.generative_nets import GENERATORS, build_generator

    return build_generator(
        GENERATORS[name], task.image_shape, task.num_outputs, options.hidden, seed
    ).to(task.device)


def generator_strategy(name: str) -> StrategyFactory:
    """Return a factory of the strategy that averages generative networks of kind
    ``name``.
    """

    def build(options: GeneratorOptions, task: Any, context: RunContext) -> Strategy:
        net = generator_of(name, options, task, derived_seed(context.seed, "model"))
        return FedGenerator(
            net, evaluator_of(task), task.num_outputs, context.synthetic.samples, context.seed
        )

    return build


def generator_client(name: str) -> ClientFactory:
    """Return a factory of clients that train a generative network of kind ``name``."""

    def build(
        options: GeneratorOptions,
        task: Any,
        client_id: int | str,
        num_clients: int,
        store: "clients.Store",
    ) -> NumPyClient:
        data, net = task.client_data(client_id, num_clients), generator_of(name, options, task, 0)
        half = clients.FedCGANClient if name == "acgan" else clients.FedCVAEClient
        return half(net, task.model_fn, data, client_id, store, task.work_model(), task.objective)

    return build


METHODS: dict[str, Method] = {
    "fedevg": Method(
        summary="a synthetic data set refined by the clients' energy signals; no network is sent",
        paper="Hahn 2024 (FedEvg)",
        trait="makes data",
        builds=FedEvg,
        strategy=evg_strategy,
        client=evg_client,
        tasks=IMAGE_TASKS,
        model="small-cnn",
        synthetic=True,
        defaults=SYNTHETIC_JOB,
    ),
    "feddm": Method(
        summary="synthetic images that each client makes by distribution matching, pooled by the "
        "server; one round may be enough",
        paper="Xiong et al. 2023",
        trait="makes data",
        page="fedevg",
        builds=FedDM,
        strategy=lambda options, task, context: FedDM(
            task.image_shape,
            task.num_outputs,
            task.initial_arrays(),
            evaluator_of(task),
            options,
            context.seed,
        ),
        client=set_client("FedDMClient"),
        tasks=IMAGE_TASKS,
        model="small-cnn",
        synthetic=True,
        defaults={**SYNTHETIC_JOB, "num-rounds": 1},
    ),
    "class-means": Method(
        summary="one image per class, the mean of all clients' images of it, from sums; one round "
        "is enough",
        paper="baseline",
        trait="makes data",
        page="fedevg",
        builds=ClassMeans,
        strategy=lambda options, task, context: ClassMeans(
            task.image_shape, task.num_outputs, evaluator_of(task), context.seed
        ),
        client=set_client("ClassMeansClient"),
        tasks=IMAGE_TASKS,
        model="small-cnn",
        synthetic=True,
        defaults={**SYNTHETIC_JOB, "num-rounds": 1},
    ),
    "fedcgan": Method(
        summary="a conditional GAN averaged over clients; the server draws synthetic data from it",
        paper="Rasouli et al. 2020 (FedGAN)",
        trait="makes data",
        page="fedevg",
        builds=FedGenerator,
        strategy=generator_strategy("acgan"),
        client=generator_client("acgan"),
        options=GeneratorOptions,
        table="fedcgan",
        tasks=IMAGE_TASKS,
        model="small-cnn",
        synthetic=True,
        defaults=GENERATOR_JOB,
    ),
    "fedcvae": Method(
        summary="a conditional variational autoencoder averaged over clients, used likewise",
        paper="baseline of Hahn 2024",
        trait="makes data",
        page="fedevg",
        builds=FedGenerator,
        strategy=generator_strategy("cvae"),
        client=generator_client("cvae"),
        options=GeneratorOptions,
        table="fedcvae",
        tasks=IMAGE_TASKS,
        model="small-cnn",
        synthetic=True,
        defaults=GENERATOR_JOB,
    ),
}

"""Apps around a user's own training function, and around the methods' own clients, for
the tests of the ``*Loop`` classes.
"""

import functools

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn import functional

from fedapps import clients
from fedapps.clients import answer_identity, to_client_app
from fedapps.engines.inline import InlineGrid
from fedapps.strategies import (
    APFL,
    APFLOptions,
    Ditto,
    DittoOptions,
    FedAvg,
    FedDyn,
    FedProx,
    FedProxOptions,
    FedRep,
    FedRepOptions,
    PartialSharing,
    Scaffold,
    SuPerFed,
    SuPerFedOptions,
)
from tests.helpers import blobs

RATE, EPOCHS, ROUNDS = 0.2, 2, 4
CONFIG = {
    "learning-rate": RATE,
    "lr-decay": 1.0,
    "momentum": 0.0,
    "weight-decay": 0.0,
    "local-epochs": EPOCHS,
}
CONFIG |= {"batch-size": 1000, "seed": 3}
HEAD = ("3.",)


class Net(torch.nn.Sequential):
    head = HEAD

    def __init__(self):
        super().__init__(
            torch.nn.Flatten(), torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)
        )
        # travels, and is no divergence
        self.register_buffer("mask", torch.tensor([0, -torch.inf]))


def seeded(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Net()


def train(net, loader, epochs, rate, make=torch.optim.SGD, **options):
    """What every tutorial has."""
    net.train()
    optimiser = make(net.parameters(), rate, **options)
    for _ in range(epochs):
        for x, y in loader:
            optimiser.zero_grad()
            loss = functional.cross_entropy(net(x), y)
            loss.backward()
            optimiser.step()
    return loss.item()


def loop_app(
    kind, function=train, batches=lambda part: [(part.x, part.y)], epochs=EPOCHS, **options
):
    app = answer_identity(ClientApp())

    @app.train()
    def fit(message, context):
        data = blobs(context.node_config["partition-id"]).train
        method = kind(Net, message, context)
        loss = method.train(function, batches(data), epochs, RATE, **options)
        return method.reply({"loss": loss, "num-examples": len(data)})

    @app.evaluate()
    @torch.no_grad()
    def evaluate(message, context):
        data = blobs(context.node_config["partition-id"]).test
        net = kind(Net, message, context).model.eval()
        scores = {
            "loss": functional.cross_entropy(net(data.x), data.y).item(),
            "num-examples": len(data),
        }
        return Message(RecordDict({"metrics": MetricRecord(scores)}), reply_to=message)

    return app


def own_app(kind, net=seeded):
    stores = {}

    def client_fn(context):
        number = context.node_config["partition-id"]
        store = stores.setdefault(number, clients.MessageStore(RecordDict()))
        return kind(net, blobs(number), number, store)

    return to_client_app(client_fn)


def run(strategy, app, rounds=ROUNDS, config=None):
    start = ArrayRecord({name: Array(t.numpy()) for name, t in seeded(7).state_dict().items()})
    sent = CONFIG | (config or {})
    configs = {"train_config": ConfigRecord(sent), "evaluate_config": ConfigRecord(sent)}
    return strategy.start(InlineGrid(app, 3), start, rounds, **configs)


METHODS = {
    "fedavg": (FedAvg, "Loop", "FedAvgClient", "loss"),
    "fedprox": (lambda: FedProx(FedProxOptions(mu=0.5)), "FedProxLoop", "FedProxClient", "loss"),
    "scaffold": (Scaffold, "ScaffoldLoop", "ScaffoldClient", "loss"),
    "feddyn": (FedDyn, "FedDynLoop", "FedDynClient", "loss"),
    "ditto": (lambda: Ditto(DittoOptions(mu=0.5, epochs=3)), "DittoLoop", "DittoClient", "loss"),
    "fedper": (lambda: PartialSharing(HEAD, "body"), "PartialLoop", "PartialClient", "loss"),
    "lg-fedavg": (lambda: PartialSharing(HEAD, "head"), "PartialLoop", "PartialClient", "loss"),
    "fedrep": (
        lambda: FedRep(HEAD, FedRepOptions(head_epochs=3, body_epochs=1)),
        "FedRepLoop",
        "FedRepClient",
        "loss",
    ),
    "apfl": (lambda: APFL(APFLOptions(alpha=0.4)), "APFLLoop", "APFLClient", "loss"),
    "apfl-adaptive": (
        lambda: APFL(APFLOptions(alpha=0.4, adaptive=True)),
        "APFLLoop",
        "APFLClient",
        "loss",
    ),
    "superfed-mm": (
        lambda: SuPerFed(SuPerFedOptions(mu=0.3, start=0.25)),
        "SuPerFedLoop",
        "SuPerFedClient",
        "half-loss",
    ),
    "superfed-mm, scaled, from the global model": (
        lambda: SuPerFed(SuPerFedOptions(start=0.25, step_scale=2.0, init="global")),
        "SuPerFedLoop",
        "SuPerFedClient",
        "half-loss",
    ),
    "superfed-lm": (
        lambda: SuPerFed(SuPerFedOptions(start=0.25), "layer"),
        "SuPerFedLoop",
        "SuPerFedClient",
        "half-loss",
    ),
}


@functools.cache
def looped(name, rounds=ROUNDS):
    """Return the result of a method around the plain loop."""
    make, loop, _, _ = METHODS[name]
    return run(make(), loop_app(getattr(clients, loop)), rounds)

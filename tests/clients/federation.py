"""Strategies over clients whose stores outlive their messages."""

from flwr.app import RecordDict

from fedapps.clients import MessageStore, to_client_app
from fedapps.engines.inline import InlineGrid
from fedapps.strategies import ClientGrid
from tests.helpers import arrays_of, blobs, simulate, small_net

TRAIN = {
    "learning-rate": 0.05,
    "lr-decay": 1.0,
    "momentum": 0.9,
    "weight-decay": 1e-3,
    "batch-size": 7,
    "local-epochs": 2,
    "seed": 3,
}


def initial(build=small_net, seed=11):
    """Return the arrays of a new net by name."""
    return {name: t.numpy().copy() for name, t in build(seed).state_dict().items()}


def federate(strategy, make, count, start, rounds, config, a_round=None, **options):
    """Return the final arrays, the stores of the clients ``make(i, store)``, and the
    result. ``a_round``: the number of clients drawn for each round.
    """
    stores = {}

    def client(context):
        i = int(context.node_config["partition-id"])
        stores[i] = MessageStore(context.state)
        return make(i, stores[i])

    grid = InlineGrid(to_client_app(client), count)
    if a_round is not None:
        grid = ClientGrid(grid, seed=1, clients_per_round=a_round)
    result = simulate(strategy, None, count, start, rounds, config, grid=grid, **options)
    return arrays_of(result), stores, result


def headed(build=small_net, head=("3.",)):
    """Return a function that builds nets with a named head."""

    def net(seed):
        model = build(seed)
        model.head = head
        return model

    return net


def own_app(kind, net):
    """Return an app around clients of a class, whose stores outlive their messages."""
    stores = {}

    def client_fn(context):
        number = context.node_config["partition-id"]
        store = stores.setdefault(number, MessageStore(RecordDict()))
        return kind(net, blobs(number), number, store)

    return to_client_app(client_fn)


def shifted(i):
    """Return the data of a client, a little beside that of the one before."""
    return blobs(i, shift=0.2 * i)


def train_nets(strategy, kind, config, rounds=3, net=None, data=shifted, **options):
    """Return the same for three clients of a class."""
    net = net or headed()
    return federate(
        strategy,
        lambda i, store: kind(net, data(i), i, store),
        3,
        initial(net),
        rounds,
        config,
        **options,
    )

"""Clients of constrained problems on the in-process grid, for the tests of Frank-Wolfe
methods.
"""

import numpy as np

from fedapps.clients import FedFWClient, MessageStore, to_client_app
from fedapps.engines.inline import InlineGrid
from fedapps.strategies import ClientGrid
from tests.helpers import simulate


def stepping(change, kind=FedFWClient):
    """Return clients whose steps end with ``change(client, config, arrays,
    metrics)``.
    """

    class Changed(kind):
        def step(self, x_bar, config):
            return change(self.client_id, config, *super().step(x_bar, config))

    return Changed


def lost(client, server_round):
    """One reply in ten."""
    return np.random.default_rng((int(client), int(server_round))).random() < 0.1


class World:
    """Clients on the in-process grid, whose points a test can read; ``fail(client,
    round)``: whether the client raises, or ``late``, moves and sends nothing of use.
    """

    def __init__(self, domain, problems, kind=FedFWClient, fail=None, late=False):
        class Failing(kind):
            def fit(self, parameters, config):
                trains = config.get("phase") != "evaluate"
                wrong = fail and trains and fail(self.client_id, config["server-round"])
                if wrong and not late:
                    raise RuntimeError("ill")
                arrays, n, metrics = super().fit(parameters, config)
                return arrays, n, {**metrics, "broken": float("nan")} if wrong else metrics

        def client_fn(context):
            k = int(context.node_config["partition-id"])
            return Failing(self.problems[k], domain, k, MessageStore(context.state))

        self.domain, self.problems = domain, list(problems)
        self.grid = InlineGrid(to_client_app(client_fn, writable=False), len(self.problems))
        self.rounds = []

    def run(self, strategy, rounds, start=None, evaluate_every=0, clients_per_round=0, **options):
        layers = self.domain.split(self.domain.start() if start is None else start)
        result = simulate(
            strategy,
            None,
            len(self.problems),
            {f"x{i}": layer for i, layer in enumerate(layers)},
            rounds,
            grid=ClientGrid(self.grid, clients_per_round=clients_per_round),
            evaluate_every=evaluate_every,
            callbacks=[self.rounds.append],
            config={"seed": 3},
            **options,
        )
        return strategy.open_model(result.arrays), result

    def kept(self):
        """Return the x_i and y_i of all clients."""
        stores = [MessageStore(context.state) for context in self.grid.contexts.values()]
        new = (self.domain.start(), 0 * self.domain.start())
        return [store.load("frank-wolfe", {}, False) or new for store in stores]

    @property
    def duals(self):
        """The dual variables y_i that the clients keep."""
        return [state[1] for state in self.kept()]

    @property
    def points(self):
        """The points x_i that the clients keep."""
        return [state[0] for state in self.kept()]

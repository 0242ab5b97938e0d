"""Clients of constrained problems on the in-process grid, for the tests of Frank-Wolfe
methods.
"""

from fedapps.clients import MessageStore, to_client_app
from fedapps.clients.fedfw import FedFWClient
from fedapps.engines.inline import InlineGrid
from fedapps.strategies import ClientGrid
from tests.helpers import simulate


class World:
    """Clients on the in-process grid, whose points a test can read; ``fail(client,
    round)``: whether the client raises.
    """

    def __init__(self, domain, problems, kind=FedFWClient, fail=None, late=False):
        def client_fn(context):
            k = int(context.node_config["partition-id"])
            return Failing(problems[k], domain, k, MessageStore(context.state))

        class Failing(kind):
            def fit(self, parameters, config):
                wrong = (
                    fail
                    and config.get("phase") != "evaluate"
                    and fail(self.client_id, config["server-round"])
                )
                if wrong and not late:
                    raise RuntimeError("ill")
                arrays, n, metrics = super().fit(parameters, config)
                return (
                    (arrays, n, {**metrics, "broken": float("nan")})
                    if wrong
                    else (arrays, n, metrics)
                )

        self.domain, self.problems = domain, problems
        self.grid = InlineGrid(to_client_app(client_fn, writable=False), len(problems))
        self.rounds = []

    def run(self, strategy, rounds, start=None, evaluate_every=0, **options):
        start = self.domain.start() if start is None else start
        client_grid = ClientGrid(self.grid, clients_per_round=options.pop("clients_per_round", 0))
        names = [f"x{i}" for i in range(len(self.domain.split(start)))]
        initial = dict(zip(names, self.domain.split(start), strict=True))
        result = simulate(
            strategy,
            None,
            len(self.problems),
            initial,
            rounds,
            grid=client_grid,
            evaluate_every=evaluate_every,
            callbacks=[self.rounds.append],
            config={"seed": 3},
            **options,
        )
        return strategy.open_model(result.arrays), result

    @property
    def duals(self):
        """The dual variables y_i that the clients keep."""
        kept = [
            MessageStore(context.state).load("frank-wolfe", {}, False)
            for context in self.grid.contexts.values()
        ]
        return [0 * self.domain.start() if state is None else state[1] for state in kept]

    @property
    def points(self):
        """The points x_i that the clients keep."""
        kept = [
            MessageStore(context.state).load("frank-wolfe", {}, False)
            for context in self.grid.contexts.values()
        ]
        return [self.domain.start() if state is None else state[0] for state in kept]

"""Federations of FFGB clients whose stores are kept, and an oracle whose learners are
tables.
"""

import math

import torch
from flwr.app import RecordDict

from fedapps.algorithms.boosting.additive import Additive, values_at
from fedapps.algorithms.boosting.functional import coded
from fedapps.clients import ClientData, FFGBClient, MessageStore, Split, to_client_app
from fedapps.clients.base.evaluation import BINARY, CLASSIFICATION
from fedapps.engines.inline import InlineGrid
from fedapps.strategies import ClientGrid
from tests.helpers import arrays_of, simulate


class Table:
    """An oracle over points 0, 1, 2, ...: learners are tables, exact where they were
    fitted, ``elsewhere(target)`` at others.
    """

    def __init__(self, size, gamma=1.0, elsewhere=None):
        self.size, self.gamma, self.elsewhere = size, gamma, elsewhere

    def fit(self, x, target, rng):
        table = torch.zeros(self.size, target.values.shape[1])
        if self.elsewhere:
            table[:] = self.elsewhere(x, target.values)
        table[x[:, 0].long()] = self.gamma * target.values
        return {"table": table.numpy()}

    def predict(self, learners, x):
        return learners["table"][:, x[:, 0].long()]


def points(at, labels):
    part = Split(torch.tensor(at, dtype=torch.float32)[:, None], torch.tensor(labels))
    return ClientData(part, part, part)


def recursion(datas, gamma, rounds, of_learners=math.inf, of_residuals=math.inf):
    """Algorithm 2 on points 0 to 3 with two classes, K = 2, mu = 0.1, eta_0 = 3: f
    after ``rounds``, with FFGB.C's two clips.
    """
    f = torch.zeros(4, 2)
    for t in range(rounds):
        parts = []
        for data in datas:
            at, g, delta = data.train.x[:, 0].long(), f.clone(), torch.zeros(3, 2)
            for k in (1, 2):
                gradient = g[at].softmax(1) - coded(data.train.y, 2)
                h = torch.zeros(4, 2)
                h[at] = gamma * (delta + gradient)
                delta = (delta + gradient - h[at]).clamp(-of_residuals, of_residuals)
                g = g - 3.0 / (2 * t + k + 1) * (h.clamp(-of_learners, of_learners) + 0.1 * g)
            parts.append(g)
        f = sum(parts) / 2
    return f


class Federation:
    """Clients with their stores; ``fails(client, round)``: whether the client does not
    answer in training, ``forgets``: whether it lost its values. ``lies(client, round,
    arrays, metrics)``: the learners that it sends.
    """

    def __init__(
        self,
        datas,
        oracle,
        outputs,
        fails=lambda client, now: False,
        forgets=lambda client, now: False,
        lies=lambda client, now, arrays, metrics: arrays,
    ):
        self.datas, self.oracle, self.outputs = datas, oracle, outputs
        self.fails, self.forgets, self.lies = fails, forgets, lies
        self.states = [RecordDict() for _ in datas]
        self.sent = []

    def client(self, number):
        outer = self

        class Watched(FFGBClient):
            def fit(self, parameters, config):
                now = config["server-round"]
                if outer.forgets(number, now):
                    outer.states[number].clear()
                outer.sent.append((now, number, sum(parameters[1])))
                arrays, n, metrics = super().fit(parameters, config)
                if outer.fails(number, now):  # after it has saved its values
                    raise RuntimeError("the line broke")
                return outer.lies(number, now, arrays, metrics), n, metrics

        objective = BINARY if self.outputs == 1 else CLASSIFICATION
        return Watched(
            self.datas[number],
            self.oracle,
            self.outputs,
            number,
            MessageStore(self.states[number]),
            objective,
        )

    def run(self, strategy, rounds, clients_per_round=0, **options):
        app = to_client_app(
            lambda context: self.client(int(context.node_config["partition-id"])), writable=False
        )
        grid = ClientGrid(
            InlineGrid(app, len(self.datas)), seed=3, clients_per_round=clients_per_round
        )
        return simulate(
            strategy, None, len(self.datas), {}, rounds, {"seed": 5}, grid=grid, **options
        )

    def values(self, strategy, rounds, x):
        """Return the values at the points x of the function after a run."""
        function = Additive.from_arrays(arrays_of(self.run(strategy, rounds, evaluate_every=0)))
        return values_at(function, x, self.outputs, self.oracle.predict)

    def kept(self, number):
        (version, *values) = MessageStore(self.states[number]).load("values", {}, False)
        return int(version[0]), values

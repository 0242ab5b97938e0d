"""FFGB as a federation: the state of clients, messages, the theorems on small problems
with a known optimum, and faults.
"""

import functools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import RecordDict

from fedapps.algorithms.boosting.additive import Additive, values_at
from fedapps.algorithms.boosting.functional import LOSSES, coded
from fedapps.algorithms.boosting.regression import FitOptions
from fedapps.algorithms.boosting.weak_learners import NetOptions, NetOracle, RidgeOracle
from fedapps.clients import ClientData, FFGBClient, MessageStore, Split, to_client_app
from fedapps.clients.base.evaluation import BINARY, CLASSIFICATION
from fedapps.engines.inline import InlineGrid
from fedapps.strategies import FFGB, ClientGrid, FFGBOptions
from tests.helpers import arrays_of, blobs, simulate, small_net


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


def net_oracle(kind="l2", steps=15):
    return NetOracle(
        small_net, NetOptions(kind, FitOptions(steps=steps, learning_rate=0.01, clip=0.0))
    )


FOUR = torch.arange(4.0)[:, None]
OVERLAPPING = [points([0, 1, 2], [0, 1, 0]), points([1, 2, 3], [1, 1, 0])]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "options", "kind"),
    [
        ("ffgb", {}, "l2"),
        ("ffgb", {"loss": "square", "weights": "samples"}, "l2"),
        ("ffgb-c", {"gamma": 0.9}, "linf"),
        ("ffgb-l", {}, "lipschitz"),
    ],
)
def test_kept_values_equal_the_whole_ensemble_after_20_rounds_with_dropouts(variant, options, kind):
    rng = np.random.default_rng(0)
    fails, forgets = rng.random((5, 21)) < 0.25, rng.random((5, 21)) < 0.08
    forgets[:, 14:] = False  # so that every client has values at the end
    datas = [blobs(seed=k, n=30 + 10 * k, shift=0.3 * k) for k in range(5)]
    oracle = net_oracle(kind, 8)
    federation = Federation(
        datas, oracle, 3, lambda k, now: fails[k, now], lambda k, now: forgets[k, now]
    )
    strategy, scores = FFGB(FFGBOptions(local_steps=2, eta_0=2.0, **options), variant), {}
    note = lambda now: scores.update(now.evaluated.metrics if now.evaluated else {})
    function = Additive.from_arrays(
        arrays_of(federation.run(strategy, 20, 3, evaluate_every=7, callbacks=[note]))
    )
    assert function.version == strategy.function.version > 15
    for number, data in enumerate(datas):
        version, values = federation.kept(number)
        assert version > 10
        of_then = Additive(function.clip, function.blocks[:version])
        for part, kept in zip((data.train, data.test), values, strict=True):
            np.testing.assert_allclose(
                kept, values_at(of_then, part.x, 3, oracle.predict), rtol=1e-5, atol=1e-5
            )
        if number in scores:  # after the last round
            last = values_at(function, data.test.x, 3, oracle.predict)
            assert [scores[number][name] for name in ("accuracy", "loss")] == [
                pytest.approx(float((last.argmax(1) == data.test.y).float().mean())),
                pytest.approx(float(LOSSES[strategy.loss].mean(last, data.test.y)), rel=1e-4),
            ]
    assert len(scores) >= 4
    assert (function.clip is not None) == (variant == "ffgb-c")


def test_a_client_that_lost_its_values_gets_the_whole_function_once():
    federation = Federation(
        [blobs(seed=k) for k in range(3)],
        net_oracle(),
        3,
        forgets=lambda k, now: (k, now) == (1, 4),
    )
    federation.run(FFGB(FFGBOptions(local_steps=2)), 7, evaluate_every=0)
    one, other, _ = (
        [sizes for _, who, sizes in federation.sent if who == number] for number in range(3)
    )
    # K = 2 learners of each of the three, but without client 1 in round 4
    assert one == [0, 6, 6, 6, 4, 6, 6]
    assert other == [0, 6, 6, 6, 6 + 6 + 6 + 4, 6, 6]


def test_a_client_that_lost_its_values_and_is_not_sampled_is_scored_again():
    """Client 3 trains in rounds 2 and 3 and forgets; the next evaluation fails, the one
    after brings the whole function.
    """
    federation, scored = Federation([points([0, 1, 2], [0, 1, 0])] * 4, Table(3), 2), []

    def note(now):
        scored.append((now.trained.clients, now.evaluated.clients))
        if now.number == 3:
            federation.states[3].clear()

    federation.run(FFGB(), 5, clients_per_round=1, evaluate_every=1, callbacks=[note])
    everyone = [0, 1, 2, 3]
    assert scored == [
        ([0], everyone),
        ([3], everyone),
        ([3], everyone),
        ([2], [0, 1, 2]),
        ([0], everyone),
    ]


def test_a_rounds_work_does_not_grow_with_the_rounds():
    evaluated = []

    class Counting(RidgeOracle):
        def predict(self, learners, x):
            evaluated.append(len(learners["weight"]) * len(x))
            return super().predict(learners, x)

    work = []

    def note(now):
        work.append(sum(evaluated))
        evaluated.clear()

    federation = Federation([blobs(seed=k) for k in range(3)], Counting(), 3)
    federation.run(FFGB(FFGBOptions(local_steps=2)), 50, evaluate_every=0, callbacks=[note])
    # round 1 has no earlier learners to add, the last one is scored
    assert len(set(work[1:-1])) == 1
    kept = [(values.dtype, values.size) for values in federation.kept(0)[1]]
    assert kept == [(np.float32, 36 * 3), (np.float32, 12 * 3)]


def test_traffic_is_counted_in_models():
    federation = Federation(
        [blobs(seed=k) for k in range(4)], net_oracle(), 3, fails=lambda k, now: (k, now) == (2, 2)
    )
    strategy, counts = FFGB(FFGBOptions(local_steps=3)), []

    def note(now):
        counts.append([*strategy.models_sent.values(), now.train_metrics["learners"]])

    federation.run(strategy, 4, evaluate_every=0, callbacks=[note])
    # Client 2's answer of round 2 was lost: in round 3 it is sent again what round 2's
    # message brought.
    assert counts == [[12, 0, 12], [9, 48, 21], [12, 3 * 9 + 21, 33], [12, 48, 45]]


def test_the_run_equals_the_recursion_written_out():
    """Two clients, K = 2, partial oracle: f^{t+1} = mean of the g_i of Algorithm 2."""
    values = Federation(OVERLAPPING, Table(4, gamma=0.6), 2).values(
        FFGB(FFGBOptions(local_steps=2, mu=0.1, eta_0=3.0)), 5, FOUR
    )
    torch.testing.assert_close(values, recursion(OVERLAPPING, 0.6, 5))


@pytest.mark.parametrize(("bound", "which"), [(0.03, "learners"), (0.1, "residuals")])
def test_ffgb_c_is_the_recursion_with_both_clips(bound, which):
    """gamma = 0.5: learners are cut to (2 - gamma) G / gamma = 3 G, residuals to (1 -
    gamma) G / gamma = G; see which cut matters.
    """
    options = FFGBOptions(local_steps=2, mu=0.1, eta_0=3.0, gradient_bound=bound, gamma=0.5)
    values = Federation(OVERLAPPING, Table(4, gamma=0.3), 2).values(
        FFGB(options, "ffgb-c"), 4, FOUR
    )
    torch.testing.assert_close(values, recursion(OVERLAPPING, 0.3, 4, 3 * bound, bound))
    others = (9.0, bound) if which == "learners" else (3 * bound, 9.0)
    assert (values - recursion(OVERLAPPING, 0.3, 4, *others)).abs().max() > 0.03


# --- the theorems, on toys ------------------------------------------------------------


@functools.cache
def distance(
    overlap, schedule="homogeneous", rounds=30, gamma=1.0, local_steps=1, residual=True, seed=0
):
    """Return ||f - f*||^2 over alpha of two clients with 12 points each, ``overlap`` of
    them shared; learners are wrong elsewhere.
    """
    mu, own, rng = 0.5, 12, np.random.default_rng(seed)
    at = [np.arange(own), np.arange(own) + own - overlap]
    labels = [rng.integers(0, 2, own) for _ in at]
    size = 2 * own - overlap
    oracle = Table(size, gamma, elsewhere=lambda x, values: -values.mean(0))
    federation = Federation([points(a, y) for a, y in zip(at, labels, strict=True)], oracle, 1)
    options = FFGBOptions(
        local_steps=local_steps, mu=mu, schedule=schedule, loss="square", residual=residual
    )
    f = federation.values(FFGB(options), rounds, torch.arange(float(size))[:, None])[:, 0]
    weight, total = np.zeros(size), np.zeros(size)
    for a, y in zip(at, labels, strict=True):
        weight[a] += 1 / 2 / own
        total[a] += (2 * y - 1) / 2 / own
    optimum = total / weight / (1 + mu)  # of E (f - y)^2 / 2 + mu / 2 f^2 at each point
    return float((weight * (f.numpy() - optimum) ** 2).sum())


def test_equal_marginals_converge_to_the_optimum_though_labels_differ():
    assert distance(12, rounds=3) > 0.1
    assert distance(12, rounds=30) < 1e-10


@pytest.mark.slow
def test_different_marginals_stop_in_a_neighbourhood_that_shrinks_with_the_difference():
    radii = [
        np.mean([distance(overlap, "general", seed=seed) for seed in range(3)])
        for overlap in (0, 6, 11, 12)
    ]
    assert radii == sorted(radii, reverse=True)
    assert radii[0] > 3 * radii[-2]
    assert radii[-1] < 1e-10
    # more rounds do not help
    assert distance(6, "general", rounds=90) == pytest.approx(
        distance(6, "general", seed=0), rel=0.01
    )


def test_with_the_residual_more_local_steps_make_up_for_a_weak_oracle():
    few, many = (distance(12, gamma=0.3, local_steps=steps) for steps in (1, 20))
    without = distance(12, gamma=0.3, local_steps=20, residual=False)
    assert many < 0.1 * few
    assert many < 0.1 * without


@pytest.mark.parametrize("variant", ["ffgb", "ffgb-c"])
def test_theorem_4_2_an_adversarial_oracle_keeps_the_function_at_zero(variant):
    """Each client has one point. Its learners are exact there and, at the other's
    point, the opposite of what the other one adds.
    """
    labels = [0, 1]

    class Adversary(Table):
        def fit(self, x, target, rng):
            own = int(x[0, 0])
            table = np.zeros((2, 2), np.float32)
            table[own] = target.values[0]
            # f = 0 there, as it will stay
            table[1 - own] = -(np.full(2, 0.5) - np.eye(2)[labels[1 - own]])
            return {"table": table}

    federation = Federation([points([own], [labels[own]]) for own in (0, 1)], Adversary(2), 2)
    federation.run(FFGB(FFGBOptions(mu=0.1, gamma=1.0), variant), 20)
    for own in (0, 1):
        assert not federation.kept(own)[1][0].any()  # whatever the labels are
    honest = Federation([points([own], [labels[own]]) for own in (0, 1)], Table(2), 2)
    honest.run(FFGB(FFGBOptions(mu=0.1, gamma=1.0), variant), 20)
    assert all(honest.kept(own)[1][0].argmax() == labels[own] for own in (0, 1))


@pytest.mark.parametrize(
    "oracle", [RidgeOracle(), net_oracle("lipschitz", 10)], ids=["ridge", "net"]
)
def test_ffgb_l_in_one_round_equals_many_rounds(oracle):
    datas = [blobs(seed=k, n=40, shift=0.2 * k) for k in range(3)]
    x, functions = torch.cat([data.test.x for data in datas]), []
    for rounds, at_once in ((6, 0), (1, 6)):
        strategy = FFGB(FFGBOptions(local_steps=3, at_once=at_once), "ffgb-l")
        result = Federation(datas, oracle, 3).run(strategy, rounds, evaluate_every=0)
        functions.append(Additive.from_arrays(arrays_of(result)))
        assert strategy.finished == bool(at_once)
    np.testing.assert_allclose(
        *(values_at(f, x, 3, oracle.predict) for f in functions), rtol=1e-4, atol=1e-5
    )
    assert [len(f) for f in functions] == [54, 9]


def test_ffgb_l_respects_the_slope_between_points():
    """Square loss, labels on a line: f reaches u, whose slope is L, between the points
    of both clients.
    """
    f = Federation([points([0, 4], [0, 1]), points([2, 6], [1, 0])], RidgeOracle(0.0), 1).values(
        FFGB(variant="ffgb-l"), 30, 2 * FOUR
    )
    # least squares through two points each
    lines = (-1 + 0.5 * np.array([0, 2, 4, 6]) + 2 - 0.5 * np.array([0, 2, 4, 6])) / 2
    np.testing.assert_allclose(f[:, 0], lines, atol=1e-4)


# --- faults ---------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["count", "shape", "version", "names"])
def test_a_reply_that_does_not_fit_is_skipped(fault):
    def lie(number, server_round, arrays, metrics):
        if number != 1:
            return arrays
        if fault == "version":
            metrics["holds"] = 999
        elif fault == "names":
            del metrics["learner-arrays"]
        axis = {"count": 0, "shape": 1}.get(fault)
        return arrays if axis is None else [np.concatenate([a, a], axis) for a in arrays]

    strategy = FFGB()
    Federation([blobs(seed=k) for k in range(3)], RidgeOracle(), 3, lies=lie).run(strategy, 3)
    assert [len(block) for block in strategy.function.blocks] == [2, 2, 2]


def test_learners_are_compared_with_the_largest_median_so_far():
    """Later learners are small, and those of a client that is fitted badly may not
    be.
    """
    strategy = FFGB()
    strategy._names = {0: 0}
    reply = SimpleNamespace(metadata=SimpleNamespace(src_node_id=0))

    def kept(*lengths):
        return len(strategy._of_usual_size([(reply, {"w": np.array([size])}) for size in lengths]))

    assert kept(1.0, 1.0, 1.0) == kept(0.1, 0.1, 4.9) == 3
    assert kept(0.1, 0.1, 5.1) == 2


@pytest.mark.parametrize("late", [False, True])
def test_learners_far_larger_than_most_are_skipped(late):
    def boast(number, server_round, arrays, metrics):
        large = number == 1 and (not late or server_round == 4)
        return [array * (40 if large else 1) for array in arrays]

    strategy = FFGB(FFGBOptions(eta_0=3.0))
    Federation([blobs(seed=k) for k in range(3)], RidgeOracle(), 3, lies=boast).run(strategy, 4)
    assert [len(block) for block in strategy.function.blocks] == (
        [3, 3, 3, 2] if late else [2, 2, 2, 2]
    )


# --- the variants ---------------------------------------------------------------------


@pytest.mark.parametrize("residual", [True, False])
def test_ffgb_ls_target_is_one_function_of_which_the_oracle_sees_values_too(residual):
    """At its points the target as a function has the target's values, for every
    learner: u + what the ones before left.
    """
    seen = []

    class Watching(RidgeOracle):
        def fit(self, x, target, rng):
            seen.append((target.values, target.function(x)))
            return super().fit(x, target, rng)

    Federation([blobs(seed=1)], Watching(), 3).run(
        FFGB(FFGBOptions(local_steps=3, residual=residual), "ffgb-l"), 2, evaluate_every=0
    )
    assert len(seen) == 6
    for values, function in seen:
        torch.testing.assert_close(function, values, rtol=1e-4, atol=1e-4)
    assert torch.allclose(seen[1][0], seen[0][0]) != residual

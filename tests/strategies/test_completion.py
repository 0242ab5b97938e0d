"""Matrix completion through real messages: centring before the first step with any
participation, and results compared with biases.
"""

import numpy as np
import pytest

from fedapps.algorithms.frank_wolfe.centering import Centering, Table
from fedapps.algorithms.frank_wolfe.matrix_domains import NuclearBall, Spectrahedron
from fedapps.algorithms.frank_wolfe.power_iteration import PowerIteration
from fedapps.algorithms.frank_wolfe.steps import duality_gap, move
from fedapps.clients import DFWTraceClient, FedFWClient, ProjectedClient
from fedapps.clients.families.completion import CompletionProblem
from fedapps.data.source import Source
from fedapps.strategies import DFWTrace, DFWTraceOptions, FedFW, FedFWOptions, ProjectedFedAvg
from fedapps.tasks.observations import observations
from fedapps.tasks.options import MatrixCompletionOptions
from tests.constrained import World, lost, stepping
from tests.helpers import arrays_of, refused

RATINGS = observations(
    MatrixCompletionOptions(rows=120, columns=150, observations=4000), Source("ratings"), 0
)
BALL = NuclearBall(RATINGS.shape, 40.0)


def parts(n, whole=RATINGS):
    cut = len(whole.values) // 5

    def deal(at):
        return [
            Table(whole.rows[k], whole.columns[k], whole.values[k]) for k in np.array_split(at, n)
        ]

    order = np.arange(len(whole.values))
    tables = zip(deal(order[cut:]), deal(order[:cut]), strict=True)
    return [CompletionProblem(train, test, whole.shape) for train, test in tables]


def root(x, means, n):
    return {"test-rmse": float(np.sqrt(means["test-squared-error"] / means["test-observations"]))}


def run(strategy, kind, rounds, n=5, problems=None, fail=None, **options):
    world = World(BALL, problems or parts(n), kind, fail)
    _, result = world.run(strategy, rounds, **options)
    return result, world


def build(name, **options):
    made = {"measure": root, "preparation": Centering(RATINGS.shape, options.pop("center", "bias"))}
    if name == "dfw-trace":
        return DFWTrace(BALL, **made), DFWTraceClient
    if name == "projected":
        return ProjectedFedAvg(BALL, learning_rate=0.5, **made), ProjectedClient
    return FedFW(
        BALL, FedFWOptions(**options), name, lambda_0=0.0, curvature=2.0, **made
    ), FedFWClient


@pytest.mark.parametrize("name", ["fedfw", "fedfw-plus", "projected", "dfw-trace"])
def test_the_constants_follow_the_point_and_determine_the_clients_scores(name):
    """The test error that clients report is that of ``rows + columns + scale x`` of the
    final model, clipped.
    """
    strategy, kind = build(name)
    result, world = run(strategy, kind, 9, evaluate_every=3)
    model = arrays_of(result)
    assert list(model) == ["x0", "rows", "columns", "scale"]
    guess = model["rows"][:, None] + model["columns"] + model["scale"] * model["x0"]
    cut = len(RATINGS.values) // 5
    error = np.clip(guess[RATINGS.rows[:cut], RATINGS.columns[:cut]], 1, 5) - RATINGS.values[:cut]
    last = result.evaluate_metrics_clientapp[9]
    assert last["test-rmse"] == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-6)
    assert 3 not in result.evaluate_metrics_clientapp  # there was nothing to evaluate yet
    assert last["test-rmse-of-biases"] < last["test-rmse-of-mean"] < last["test-rmse-of-zero"]
    assert [now.trained.bytes_up > 0 for now in world.rounds] == [True] * 9


@pytest.mark.parametrize("name", ["fedfw-plus", "dfw-trace"])
def test_all_clients_are_asked_although_rounds_are_sampled(name):
    plain, _ = run(*build(name), 12)
    sampled, _ = run(*build(name), 12, clients_per_round=2)
    for key in ("rows", "columns", "scale"):
        np.testing.assert_array_equal(arrays_of(sampled)[key], arrays_of(plain)[key])


def test_a_client_that_does_not_answer_is_missing_from_the_sums_only():
    plain, _ = run(*build("dfw-trace"), 12)
    some, _ = run(*build("dfw-trace"), 12, fail=lambda client, t: t == 2 and client == 1)
    # no client answered: the question is asked again
    away, _ = run(*build("dfw-trace"), 12, fail=lambda client, t: t == 2)
    assert 0 < np.abs(arrays_of(some)["columns"] - arrays_of(plain)["columns"]).max() < 0.5
    np.testing.assert_array_equal(arrays_of(away)["columns"], arrays_of(plain)["columns"])


def test_the_penalty_ends_at_the_curvature_over_n():
    seen = []

    def note(client, config, *reply):
        seen.append((config["lambdas"][-1], config["etas"][0], config["server-round"]))
        return reply

    for options in ({}, {"local_steps": 3}, {"schedule": "non-convex"}, {"offset": 6}):
        seen.clear()
        run(build("fedfw", **options)[0], stepping(note), 10)
        penalty, _, last = seen[-1]
        assert last == 10
        assert penalty == pytest.approx(2.0 / 5)
        if options.get("schedule") is None:
            assert seen[0][1] == 2 / (options.get("offset", 0) + 2)


def test_dfw_trace_is_far_below_the_biases_and_near_central_frank_wolfe():
    many, _ = run(*build("dfw-trace"), 84, n=20, evaluate_every=0)
    central, _ = run(*build("fedfw", lambda_0=1.0, offset=2), 60, n=1, evaluate_every=0)
    measures = many.evaluate_metrics_clientapp[84]
    assert measures["test-rmse"] < measures["test-rmse-of-biases"] - 0.01
    assert measures["test-rmse"] < central.evaluate_metrics_clientapp[60]["test-rmse"] + 0.01


@pytest.mark.parametrize(
    "constants",
    [[np.zeros(3)], [np.zeros(120), np.zeros(150)], [np.zeros(150), np.zeros(120), np.ones(1)]],
)
def test_constants_of_another_shape_are_refused(constants):
    refused(lambda: parts(2)[0].given(constants), "rows, columns and a scale")


# --- dfw trace ------------------------------------------------------------------------

# DFW-Trace through real messages: the optimum, known from a projection, with any
# participation; only sums are used; state, faults, traffic.


SMALL_BALL = NuclearBall((7, 5), 2.0)
CONE = Spectrahedron((6, 6), 1.5)


class Distance:
    """``f_i(X) = ||X - M_i||^2``: the minimum over a set is the projection of the mean
    of the M_i onto it.
    """

    num_examples = 3

    def __init__(self, target):
        self.target = target

    def value(self, x):
        return float(np.sum((x - self.target) ** 2))

    def gradient(self, x):
        return 2 * (x - self.target)

    def score(self, x):
        return {}


def problems(domain, n=6, seed=0):
    targets = np.random.default_rng(seed).normal(size=(n, *domain.shape))
    if isinstance(domain, Spectrahedron):
        targets = targets + targets.transpose(0, 2, 1)
    return [Distance(target) for target in targets]


def solution(domain, parts):
    return domain.project(np.mean([part.target for part in parts], axis=0))


def value(parts, x):
    return float(np.mean([part.value(x) for part in parts]))


SETTINGS = {
    "all": {},
    "half sampled": {"clients_per_round": 3},
    "one sampled": {"clients_per_round": 1},
    "lost": {"fail": lost},
    "half sampled, lost": {"clients_per_round": 3, "fail": lost, "late": True},
}


def traced(
    domain, parts, rounds, strategy=None, kind=DFWTraceClient, fail=None, late=False, **options
):
    world = World(domain, parts, kind, fail, late)
    strategy = strategy or DFWTrace(domain)
    x, result = world.run(strategy, rounds, **options)
    return x, strategy, world, result


@pytest.mark.parametrize("domain", [SMALL_BALL, CONE], ids=["nuclear ball", "spectrahedron"])
@pytest.mark.parametrize(
    "setting",
    [name if name == "all" else pytest.param(name, marks=pytest.mark.slow) for name in SETTINGS],
)
def test_the_solution_is_reached_with_any_participation(domain, setting):
    parts, options = problems(domain), dict(SETTINGS[setting])
    rounds = (
        400 * {"all": 1, "one sampled": 6}.get(setting, 3) // (1 if domain is SMALL_BALL else 2)
    )
    x, strategy, _, _ = traced(domain, parts, rounds, **options)
    assert strategy.steps_taken >= 200
    assert domain.contains(x, 1e-9)
    best = value(parts, solution(domain, parts))
    assert -1e-9 <= value(parts, x) - best < 0.05 * (value(parts, domain.start()) - best)


@pytest.mark.parametrize("setting", ["half sampled", "one sampled", "lost", "half sampled, lost"])
def test_the_order_of_answers_changes_only_the_number_of_rounds(setting):
    parts = problems(SMALL_BALL)
    plain, reference, _, _ = traced(SMALL_BALL, parts, 40)
    strategy = DFWTrace(SMALL_BALL)

    def equal(number, result):
        return strategy.steps_taken == reference.steps_taken

    options = {**SETTINGS[setting], "should_stop": equal}
    if "fail" in options:  # never twice in a row
        options["fail"] = lambda client, t: (int(client) + t) % 7 == 0
    x, _, world, _ = traced(SMALL_BALL, parts, 400, strategy, **options)
    assert strategy.steps_taken == reference.steps_taken == 20
    assert len(world.rounds) > 40
    np.testing.assert_allclose(x, plain, atol=1e-9)


def by_hand(domain, parts, products, iterations=1):
    """Return x, the number of steps and the last gap after a number of products with
    the mean gradient, without messages.
    """
    power, x, steps, gap = PowerIteration(domain, iterations), domain.start(), 0, 0.0
    for _ in range(products):
        gradient = np.mean([part.gradient(x) for part in parts], axis=0)
        sides = (gradient, power.vector) if power.side == "right" else (power.vector, gradient)
        if atom := power.take(np.matmul(*sides)):
            steps, gap = steps + 1, float(np.vdot(gradient, x)) + power.value
            move(x, atom, 2 / (steps + 3))
    return x, steps, gap


@pytest.mark.parametrize("domain", [SMALL_BALL, CONE], ids=["nuclear ball", "spectrahedron"])
def test_the_messages_carry_the_algorithm(domain):
    result_x, strategy, _, _ = traced(domain, problems(domain), 31)
    x, steps, gap = by_hand(domain, problems(domain), 31)
    assert strategy.steps_taken == steps == (15 if domain is SMALL_BALL else 31)
    assert strategy.gap == pytest.approx(gap)
    np.testing.assert_allclose(result_x, x, atol=1e-12)


@pytest.mark.parametrize(
    "domain",
    [NuclearBall((7, 5), 2.0, 1e-12), Spectrahedron((6, 6), 1.5, 1e-12)],
    ids=["nuclear ball", "spectrahedron"],
)
def test_with_many_power_iterations_it_is_frank_wolfe_on_the_mean(domain):
    parts = problems(domain)
    result_x, steps, result_gap = by_hand(
        domain, parts, 6 * 500 * (2 if isinstance(domain, NuclearBall) else 1), 500
    )
    x = domain.start()
    for t in range(1, 7):
        gradient = np.mean([part.gradient(x) for part in parts], axis=0)
        gap = duality_gap(domain, x, gradient)
        move(x, domain.lmo(gradient), 2 / (t + 3))
    # one of them to another eigenvector than the last, of which the first was an exact
    # one
    assert steps == 6
    np.testing.assert_allclose(result_x, x, atol=1e-6)
    assert result_gap == pytest.approx(gap, rel=1e-6)


def test_only_sums_of_the_replies_are_used():
    """Clients that mask their products and scalars without changing the sums give the
    same traced.
    """

    def masked(client, config, arrays, metrics):
        mask = np.random.default_rng(arrays[0].size).normal(size=(6, arrays[0].size))
        own = (mask - mask.mean(axis=0))[client]
        return [arrays[0] + own], {"inner": metrics["inner"] + float(own[0])}

    plain, strategy, _, _ = traced(SMALL_BALL, problems(SMALL_BALL), 60)
    masked, other, _, _ = traced(
        SMALL_BALL, problems(SMALL_BALL), 60, kind=stepping(masked, DFWTraceClient)
    )
    np.testing.assert_allclose(masked, plain, atol=1e-10)
    assert other.gap == pytest.approx(strategy.gap)


def test_a_client_sends_a_vector_and_never_a_gradient():
    class Listening(DFWTraceClient):
        def fit(self, parameters, config):
            arrays, *rest = super().fit(parameters, config)
            sent.append((config.get("phase"), [a.shape for a in arrays]))
            return arrays, *rest

    sent = []
    _, _, _, result = traced(SMALL_BALL, problems(SMALL_BALL), 8, kind=Listening, evaluate_every=4)
    assert {phase for phase, _ in sent} == {None, "evaluate"}
    assert all(shapes == [] if phase else shapes in ([(7,)], [(5,)]) for phase, shapes in sent)
    last = result.evaluate_metrics_clientapp[8]
    assert "gap-estimate" in last
    assert last["objective"] > 0


def test_a_reply_that_is_no_product_skips_only_its_client(caplog):
    def odd(client, config, arrays, metrics):
        if client == 1 and config["server-round"] % 5 == 0:
            return ([arrays[0][:-1]], metrics) if config["server-round"] % 2 else (arrays, {})
        return arrays, metrics

    _, reference, _, _ = traced(SMALL_BALL, problems(SMALL_BALL), 20)
    _, strategy, _, _ = traced(
        SMALL_BALL, problems(SMALL_BALL), 20, kind=stepping(odd, DFWTraceClient)
    )
    assert "its product is not one array" in caplog.text
    assert "its metric 'inner' is missing" in caplog.text
    assert 6 <= strategy.steps_taken < reference.steps_taken


@pytest.mark.parametrize("sampled", [0, 3])
def test_one_liar_does_not_choose_the_atoms(sampled):
    """With products of at most the median length; honest ones are not touched by the
    default.
    """

    def lie(client, config, arrays, metrics):
        return ([-1e6 * arrays[0]] if client == 0 else arrays), metrics

    parts = problems(SMALL_BALL, 10)
    for part in parts:
        part.target = parts[0].target + 0.1 * part.target
    rounds, best = 600 if sampled else 200, value(parts, solution(SMALL_BALL, parts))
    worst = value(parts, SMALL_BALL.start()) - best
    gaps = []
    for most in (0.0, 1.0):
        strategy = DFWTrace(SMALL_BALL, DFWTraceOptions(longest_product=most))
        x = traced(
            SMALL_BALL,
            parts,
            rounds,
            strategy,
            stepping(lie, DFWTraceClient),
            clients_per_round=sampled,
        )[0]
        gaps.append((value(parts, x) - best) / worst)
    assert gaps[1] < 0.1 < 1 < gaps[0]
    plain, bounded = (
        traced(SMALL_BALL, parts, 40, DFWTrace(SMALL_BALL, DFWTraceOptions(longest_product=most)))[
            0
        ]
        for most in (0.0, 5.0)
    )
    np.testing.assert_array_equal(plain, bounded)


def test_a_zero_gradient_gives_an_atom_of_the_domain():
    for power in (PowerIteration(SMALL_BALL), PowerIteration(CONE)):
        assert power.domain.contains(
            [power.take(np.zeros(power.size)) for _ in range(2)][-1].dense()
        )

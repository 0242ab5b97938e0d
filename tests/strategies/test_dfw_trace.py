"""DFW-Trace through real messages: the optimum, known from a projection, with any
participation; only sums are used; state, faults, traffic.
"""

import numpy as np
import pytest

from fedapps.algorithms.frank_wolfe.matrix_domains import NuclearBall, Spectrahedron
from fedapps.algorithms.frank_wolfe.power_iteration import PowerIteration
from fedapps.algorithms.frank_wolfe.steps import duality_gap, move
from fedapps.clients.dfw_trace import DFWTraceClient
from fedapps.strategies.dfw_trace import DFWTrace, DFWTraceOptions
from tests.constrained import World, stepping

BALL = NuclearBall((7, 5), 2.0)
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


def lost(client, server_round):
    """One reply in ten."""
    return np.random.default_rng((int(client), int(server_round))).random() < 0.1


SETTINGS = {
    "all": {},
    "half sampled": {"clients_per_round": 3},
    "one sampled": {"clients_per_round": 1},
    "lost": {"fail": lost},
    "half sampled, lost": {"clients_per_round": 3, "fail": lost, "late": True},
}


def run(
    domain, parts, rounds, strategy=None, kind=DFWTraceClient, fail=None, late=False, **options
):
    world = World(domain, parts, kind, fail, late)
    strategy = strategy or DFWTrace(domain)
    x, result = world.run(strategy, rounds, **options)
    return x, strategy, world, result


@pytest.mark.parametrize("domain", [BALL, CONE], ids=["nuclear ball", "spectrahedron"])
@pytest.mark.parametrize(
    "setting",
    [name if name == "all" else pytest.param(name, marks=pytest.mark.slow) for name in SETTINGS],
)
def test_the_solution_is_reached_with_any_participation(domain, setting):
    parts, options = problems(domain), dict(SETTINGS[setting])
    rounds = 400 * {"all": 1, "one sampled": 6}.get(setting, 3) // (1 if domain is BALL else 2)
    x, strategy, _, _ = run(domain, parts, rounds, **options)
    assert strategy.steps_taken >= 200
    assert domain.contains(x, 1e-9)
    best = value(parts, solution(domain, parts))
    assert -1e-9 <= value(parts, x) - best < 0.05 * (value(parts, domain.start()) - best)


@pytest.mark.parametrize("setting", ["half sampled", "one sampled", "lost", "half sampled, lost"])
def test_the_order_of_answers_changes_only_the_number_of_rounds(setting):
    parts = problems(BALL)
    plain, reference, _, _ = run(BALL, parts, 40)
    strategy = DFWTrace(BALL)

    def equal(number, result):
        return strategy.steps_taken == reference.steps_taken

    options = {**SETTINGS[setting], "should_stop": equal}
    if "fail" in options:  # never twice in a row
        options["fail"] = lambda client, t: (int(client) + t) % 7 == 0
    x, _, world, _ = run(BALL, parts, 400, strategy, **options)
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


@pytest.mark.parametrize("domain", [BALL, CONE], ids=["nuclear ball", "spectrahedron"])
def test_the_messages_carry_the_algorithm(domain):
    result_x, strategy, _, _ = run(domain, problems(domain), 31)
    x, steps, gap = by_hand(domain, problems(domain), 31)
    assert strategy.steps_taken == steps == (15 if domain is BALL else 31)
    assert strategy.gap == pytest.approx(gap)
    np.testing.assert_allclose(result_x, x, atol=1e-12)


@pytest.mark.parametrize(
    "domain",
    [NuclearBall((7, 5), 2.0, 1e-12), Spectrahedron((6, 6), 1.5, 1e-12)],
    ids=["nuclear ball", "spectrahedron"],
)
def test_with_many_power_iterations_it_is_frank_wolfe_on_the_mean(domain):
    parts = problems(domain)
    halves = 2 if isinstance(domain, NuclearBall) else 1
    result_x, steps, result_gap = by_hand(domain, parts, 6 * 500 * halves, 500)
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
    same run.
    """

    def masked(client, config, arrays, metrics):
        mask = np.random.default_rng(arrays[0].size).normal(size=(6, arrays[0].size))
        own = (mask - mask.mean(axis=0))[client]
        return [arrays[0] + own], {"inner": metrics["inner"] + float(own[0])}

    plain, strategy, _, _ = run(BALL, problems(BALL), 60)
    masked, other, _, _ = run(BALL, problems(BALL), 60, kind=stepping(masked, DFWTraceClient))
    np.testing.assert_allclose(masked, plain, atol=1e-10)
    assert other.gap == pytest.approx(strategy.gap)


def test_a_client_sends_a_vector_and_never_a_gradient():
    class Listening(DFWTraceClient):
        def fit(self, parameters, config):
            arrays, *rest = super().fit(parameters, config)
            sent.append((config.get("phase"), [a.shape for a in arrays]))
            return arrays, *rest

    sent = []
    _, _, _, result = run(BALL, problems(BALL), 8, kind=Listening, evaluate_every=4)
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

    _, reference, _, _ = run(BALL, problems(BALL), 20)
    _, strategy, _, _ = run(BALL, problems(BALL), 20, kind=stepping(odd, DFWTraceClient))
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

    parts = problems(BALL, 10)
    for part in parts:
        part.target = parts[0].target + 0.1 * part.target
    rounds, best = 600 if sampled else 200, value(parts, solution(BALL, parts))
    worst = value(parts, BALL.start()) - best
    gaps = []
    for most in (0.0, 1.0):
        strategy = DFWTrace(BALL, DFWTraceOptions(longest_product=most))
        liar = stepping(lie, DFWTraceClient)
        x = run(BALL, parts, rounds, strategy, liar, clients_per_round=sampled)[0]
        gaps.append((value(parts, x) - best) / worst)
    assert gaps[1] < 0.1 < 1 < gaps[0]
    plain, bounded = (
        run(BALL, parts, 40, DFWTrace(BALL, DFWTraceOptions(longest_product=most)))[0]
        for most in (0.0, 5.0)
    )
    np.testing.assert_array_equal(plain, bounded)


def test_a_zero_gradient_gives_an_atom_of_the_domain():
    for power in (PowerIteration(BALL), PowerIteration(CONE)):
        atoms = [power.take(np.zeros(power.size)) for _ in range(2)]
        assert power.domain.contains(atoms[-1].dense())

import numpy as np
import pytest

from fedapps.algorithms.fairness.portfolio import LinearisedFTRL, OnlineNewtonStep
from fedapps.algorithms.fairness.responses import CDFS, decision_loss, respond
from fedapps.algorithms.fairness.simplex import minimise_on_simplex
from fedapps.algorithms.fairness.weight_rules import ProjectedAscent
from tests.helpers import assert_arrays, refused
from tests.simplexes import least_on_simplex


def residual(hessian: np.ndarray, linear: np.ndarray, p: np.ndarray) -> float:
    """How far p is from the Karush-Kuhn-Tucker conditions of min p'Hp/2 - b'p on the
    simplex.
    """
    slope = hessian @ p - linear
    # the multiplier of sum p = 1; the others, of p >= 0, are slope - level and hence
    # feasible
    return max(abs(p.sum() - 1), -p.min(), float((p * (slope - slope.min())).max()))


def hindsight(responses: np.ndarray) -> float:
    """A lower bound of the loss (T, K) of the best fixed p, within 1e-3 of it: the
    tangent of the convex loss at a near-minimum.
    """
    wealth = 1 + responses
    p = np.full(responses.shape[1], 1 / responses.shape[1])
    # Cover's iteration for the log-optimal portfolio: it raises the growth every time
    for _ in range(20_000):
        growth = (wealth / (wealth @ p)[:, None]).mean(axis=0)
        gap = len(responses) * (growth.max() - growth @ p)
        if gap < 1e-3:
            break
        p = p * growth
    assert gap < 1e-3
    return -np.log(wealth @ p).sum() - gap


def play(rule, rounds: int, adversary) -> tuple[float, np.ndarray]:
    """The loss of the rule's decisions, each taken before the responses are known, and
    the responses (T, K).
    """
    everyone, total, seen = np.arange(rule.count), 0.0, []
    for t in range(rounds):
        p = rule.p
        r = rule.low + (rule.high - rule.low) * adversary(t, p)
        total += decision_loss(p, r)
        seen.append(r)
        rule.decide(everyone, r)
    return total, np.array(seen)


def adversaries(count: int):
    """Ways to choose responses in [0, 1], knowing the decision."""
    rng = np.random.default_rng(7)
    eye = np.eye(count)
    tilted = rng.dirichlet(np.ones(count))
    return {
        "uniform": lambda t, p: rng.random(count),
        "one client drawn": lambda t, p: eye[rng.choice(count, p=tilted)],
        "one client only": lambda t, p: eye[0],
        "all equal": lambda t, p: np.ones(count),
        "nobody": lambda t, p: np.zeros(count),
        "least weight wins": lambda t, p: eye[np.argmin(p)],
        "most weight loses": lambda t, p: 1 - eye[np.argmax(p)],
        "below the mean wins": lambda t, p: (p < 1 / count) * 1.0,
        "alternating": lambda t, p: eye[t % count],
        "long phases": lambda t, p: eye[(t // 150) % count],
        "losses through a distribution": lambda t, p: respond(
            rng.lognormal(sigma=2, size=count), "normal", 0, 1
        ),
    }


NAMES = list(adversaries(2))


# The quadratic program


@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_the_program_on_the_simplex_is_solved_to_the_last_digits(count):
    rng = np.random.default_rng(count)
    for scale in (0.01, 1.0, 100.0):
        root = rng.normal(size=(count, count))
        hessian, linear = root @ root.T + 0.1 * np.eye(count), scale * rng.normal(size=count)
        assert residual(hessian, linear, minimise_on_simplex(hessian, linear)) <= 1e-10 * max(
            1, scale
        )


def test_the_program_in_a_box_is_solved():
    rng = np.random.default_rng(3)
    for _ in range(10):
        root = rng.normal(size=(6, 6))
        hessian, linear = root @ root.T + 0.1 * np.eye(6), rng.normal(size=6)
        centre = rng.dirichlet(np.ones(6))
        low, high = np.maximum(centre - 0.1, 0), centre + 0.1
        p = minimise_on_simplex(hessian, linear, low, high)
        assert ((p >= low) & (p <= high + 1e-12)).all()
        least = least_on_simplex(
            lambda p: 0.5 * p @ hessian @ p - linear @ p,
            lambda p: hessian @ p - linear,
            list(zip(low, high, strict=True)),
        )
        np.testing.assert_allclose(p, least, atol=2e-6)
    np.testing.assert_allclose(
        minimise_on_simplex(np.eye(2), np.zeros(2), [0.3, 0.7], [0.3, 0.7]), [0.3, 0.7]
    )
    refused(lambda: minimise_on_simplex(np.eye(2), np.zeros(2), 0.0, 0.4), "no solution")


# AAggFF-S


@pytest.mark.parametrize("bounds", [(0.0, None), (0.0, 1.0), (0.5, 3.0)])
def test_the_newton_step_minimises_3_7(bounds):
    """The program is (3.7) up to a constant: alpha, beta, H and b as they should be,
    from the history alone.
    """
    rng = np.random.default_rng(4)
    count = 5
    rule = OnlineNewtonStep(count, *bounds)
    lipschitz = rule.high / (1 + rule.low)
    alpha, beta = 4 * count * lipschitz, 1 / (4 * lipschitz)
    past: list[tuple[np.ndarray, np.ndarray]] = []

    def objective(p):
        return (
            sum(g @ p for _, g in past)
            + alpha / 2 * p @ p
            + beta / 2 * sum((g @ (p - before)) ** 2 for before, g in past)
        )

    for _ in range(6):
        r = rng.uniform(rule.low, rule.high, count)
        past.append((rule.p, -r / (1 + rule.p @ r)))
        rule.decide(np.arange(count), r)
        hessian, linear = rule.program()
        trials = rng.dirichlet(np.ones(count), 20)
        constants = [objective(p) - (p @ hessian @ p / 2 - linear @ p) for p in trials]
        np.testing.assert_allclose(constants, constants[0], rtol=1e-9)
        assert residual(hessian, linear, rule.p) <= 1e-8


def test_the_reference_ridge_has_its_own_form_and_milder_weights():
    count, rounds = 7, 60
    losses = np.linspace(0.4, 1.0, count)
    rules = {ridge: OnlineNewtonStep(count, ridge=ridge) for ridge in ("paper", "reference")}
    past = []
    for _ in range(rounds):
        r = respond(losses, "normal", 0, 1 / count)
        past.append(-r / (1 + rules["reference"].p @ r))
        for rule in rules.values():
            rule.decide(np.arange(count), r)
    hessian, linear = rules["reference"].program()
    alpha, beta = 4, count / 4
    np.testing.assert_allclose(
        hessian,
        alpha * (1 + beta) * np.eye(count) + beta * sum(np.outer(g, g) for g in past),
        rtol=1e-12,
    )
    np.testing.assert_allclose(linear, -sum(past), rtol=1e-12)
    assert rules["paper"].p.argmax() == rules["reference"].p.argmax() == count - 1
    assert rules["paper"].p[-1] > rules["reference"].p[-1] + 0.1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("count", "high", "factor"), [(2, 1.0, 2), (5, 1.0, 5), (7, None, 1)])
def test_regret_of_the_newton_step_is_within_theorem_3_1(count, high, factor, name):
    """With C2 = 1 beta = 1/4, and the proof's premise beta <= 1/2 holds; with its
    default range the bound is that of one client.
    """
    rounds = 600
    total, seen = play(OnlineNewtonStep(count, high=high), rounds, adversaries(count)[name])
    assert total - hindsight(seen) <= 2 * factor * (1 + np.log(1 + rounds / (16 * count)))


def test_the_newton_step_asks_for_all_clients_in_any_order():
    rng = np.random.default_rng(5)
    rule, other = OnlineNewtonStep(6), OnlineNewtonStep(6)
    for _ in range(4):
        r, order = rng.uniform(0, 1 / 6, 6), rng.permutation(6)
        np.testing.assert_array_equal(
            other.decide(order, r[order]), rule.decide(np.arange(6), r)[order]
        )
    refused(
        lambda: rule.decide(np.arange(5), np.full(5, 0.1)), r"5 of 6 clients responded.*AAggFF-D"
    )


def test_a_newcomer_of_the_newton_step_has_the_mean_clients_past():
    rng = np.random.default_rng(6)
    rule = OnlineNewtonStep(4, high=0.5)
    past = []
    for _ in range(20):
        r = rng.uniform(0, 0.5, 4) * [0.2, 0.4, 0.6, 1.0]
        past.append((rule.p, -r / (1 + rule.p @ r)))
        rule.decide(np.arange(4), r)
    before = rule.p
    rule.add(2)
    np.testing.assert_allclose(rule.p, np.append(before, [0.25, 0.25]) / 1.5, rtol=1e-12)
    rows = [(np.append(p, [0, 0]), np.append(g, [g.mean()] * 2)) for p, g in past]
    alpha, beta = 4 * 6 * 0.5, 1 / 2
    hessian, linear = rule.program()
    np.testing.assert_allclose(
        hessian, alpha * np.eye(6) + beta * sum(np.outer(g, g) for _, g in rows), rtol=1e-12
    )
    np.testing.assert_allclose(linear, sum(beta * g * (g @ p) - g for p, g in rows), rtol=1e-12)


def test_leaving_the_newton_step_keeps_the_history_of_those_who_stay():
    rng = np.random.default_rng(7)
    rule = OnlineNewtonStep(5, high=1.0)
    for _ in range(3):
        rule.decide(np.arange(5), rng.random(5))
    p, outer, slope, cross = rule.p, rule.outer, rule.slope, rule.cross
    rule.drop(np.array([3, 1]))
    stay = [0, 2, 4]
    np.testing.assert_allclose(rule.p, p[stay] / p[stay].sum(), rtol=1e-12)
    assert_arrays(
        [rule.outer, rule.slope, rule.cross], [outer[np.ix_(stay, stay)], slope[stay], cross[stay]]
    )
    assert OnlineNewtonStep(8).high == 1 / 8


def test_where_all_the_weight_leaves_the_rest_share_it():
    rule = OnlineNewtonStep(3)
    rule.p = np.array([0.0, 1.0, 0.0])
    rule.drop([1])
    np.testing.assert_array_equal(rule.p, [0.5, 0.5])


# AAggFF-D


class Dense:
    """AAggFF-D as it is printed: all K coordinates, every term of (3.10) to (3.12)."""

    def __init__(self, count: int, ratio: float, low: float, high: float) -> None:
        self.count, self.ratio, self.low, self.high = count, ratio, low, high
        self.total, self.rounds = np.zeros(count), 0
        self.p = np.full(count, 1 / count)
        self.lipschitz = high / (1 + low) + 2 * (high - low) / (ratio * (1 + low))

    def decide(self, sampled: np.ndarray, values: np.ndarray) -> np.ndarray:
        r0 = np.full(self.count, values.mean())
        estimate = r0.copy()  # (3.10)
        estimate[sampled] += (values - values.mean()) / self.ratio
        self.gradient = (  # (3.11)
            -estimate / (1 + self.p @ r0) + r0 * (self.p @ (estimate - r0)) / (1 + self.p @ r0) ** 2
        )
        self.total += self.gradient
        self.rounds += 1
        logits = (
            -np.sqrt(np.log(self.count)) * self.total / (self.lipschitz * np.sqrt(self.rounds + 1))
        )
        self.p = np.exp(logits - logits.max())
        self.p /= self.p.sum()
        return self.p[sampled] / self.p[sampled].sum()


@pytest.mark.parametrize(("count", "size"), [(5, 2), (40, 7), (300, 5), (6, 6), (9, 1)])
@pytest.mark.parametrize("bounds", [(0.0, None), (0.2, 0.9)])
def test_touching_the_sampled_clients_alone_is_the_dense_update(count, size, bounds):
    rng = np.random.default_rng(9)
    ratio = size / count if size < count else 0.999
    rule = LinearisedFTRL(count, ratio, *bounds)
    dense = Dense(count, ratio, rule.low, rule.high)
    assert rule.lipschitz == pytest.approx(dense.lipschitz, rel=1e-15)
    for _ in range(60):
        sampled = rng.choice(count, size, replace=False)
        r = respond(rng.lognormal(size=size), "frechet", rule.low, rule.high)
        unseen = np.delete(rule.scores, sampled)
        np.testing.assert_allclose(rule.decide(sampled, r), dense.decide(sampled, r), rtol=1e-10)
        np.testing.assert_array_equal(np.delete(rule.scores, sampled), unseen)
        np.testing.assert_allclose(rule.p, dense.p, rtol=1e-10)
        assert np.abs(dense.gradient).max() <= rule.lipschitz  # Lemma 3.5


@pytest.mark.parametrize(("step", "factor"), [("paper", 2), ("sampled", 1)])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [2, 12])
def test_regret_of_the_entropy_leader_is_within_theorem_3_2(count, name, step, factor):
    """With the larger step within half of its bound: that of gradients in an interval
    of length L, by Hoeffding's lemma.
    """
    rounds = 800
    rule = LinearisedFTRL(count, ratio=1.0, step=step)
    assert rule.lipschitz == 1
    total, seen = play(rule, rounds, adversaries(count)[name])
    assert total - hindsight(seen) <= factor * rule.lipschitz * np.sqrt(rounds * np.log(count))


@pytest.mark.slow
def test_with_all_clients_the_exact_gradient_is_what_keeps_the_regret_small():
    """Linearised at the mean, a win in a lean round counts twice a win in a fat one,
    whatever the weights.
    """
    count, rounds = 20, 12_000
    lean, fat = np.eye(count)[0], 1 - np.eye(count)[0]

    def adversary(t, p):
        return lean if (2 * t) % 5 < 2 else fat

    exact = LinearisedFTRL(count, ratio=1.0)
    total, seen = play(exact, rounds, adversary)
    bound = 2 * np.sqrt(rounds * np.log(count))
    assert total - hindsight(seen) <= bound
    lean_leader = LinearisedFTRL(count, ratio=1 - 1e-9, high=1.0)
    total, seen = play(lean_leader, rounds, adversary)
    assert total - hindsight(seen) > bound
    # It has settled on the client that wins 40 % of the rounds, and loses as much again
    # in every round to come.
    assert lean_leader.p[0] > 0.8
    assert exact.p[0] < 0.5


def test_joining_and_leaving_the_entropy_leader():
    rng = np.random.default_rng(11)
    rule = LinearisedFTRL(6, 0.5)
    for _ in range(30):
        rule.decide(rng.choice(6, 3, replace=False), rng.uniform(0, 0.5, 3))
    before = rule.p
    rule.add(2)
    np.testing.assert_allclose(rule.p, np.append(before, [1 / 6] * 2) / (1 + 2 / 6), rtol=1e-10)
    rule.drop(np.array([0, 6]))
    rest = np.append(before[1:], 1 / 6)
    np.testing.assert_allclose(rule.p, rest / rest.sum(), rtol=1e-10)


@pytest.mark.parametrize("cap", [0.0, 1.0, 1.1, 1.5, 3.0])
@pytest.mark.parametrize("rate", [0.0, 1.0, 40.0])
@pytest.mark.parametrize("prior", ["uniform", "samples"])
def test_the_weights_of_a_sample_are_those_of_all(cap, rate, prior):
    rng = np.random.default_rng(1)
    rule = LinearisedFTRL(40, 0.1, step="sampled", rate=rate, cap=cap)
    if prior == "samples":
        rule.set_prior(rng.lognormal(size=40))
    for number in range(60):
        at = rng.permutation(40)
        np.testing.assert_allclose(rule.at(at), rule.p[at], rtol=1e-9, atol=1e-15)
        rule.decide(at[:4], rule.high * (at[:4] > 30) * rng.uniform(size=4))
        assert rule.at(np.arange(40)).sum() == pytest.approx(1)
        if number == 20:
            rule.add(3)
            rule.drop([40, 41, 42])


# Both


@pytest.mark.parametrize(
    "rule",
    [
        OnlineNewtonStep(6),
        OnlineNewtonStep(6, ridge="reference"),
        OnlineNewtonStep(6, high=100.0),
        LinearisedFTRL(6, 1.0),
        LinearisedFTRL(6, 0.34),
        LinearisedFTRL(6, 0.34, high=1e6),
        ProjectedAscent(6, 0.1),
        ProjectedAscent(6, 0.1, cap=2.0),
        ProjectedAscent(6, 1e300),
    ],
)
def test_weights_stay_on_the_simplex_for_a_thousand_rounds_of_extreme_losses(rule):
    rng = np.random.default_rng(12)
    patterns = [
        np.zeros(6),
        np.full(6, 1e30),
        1e30 * np.eye(6)[2],
        np.array([0, 1e30, 1, 1e-30, 0, 5]),
        np.ones(6),
    ]
    cdfs = list(CDFS)
    for t in range(1000):
        sampled = np.arange(6)
        afl = isinstance(rule, ProjectedAscent)
        if afl or (isinstance(rule, LinearisedFTRL) and rule.ratio < 1):
            sampled = rng.choice(6, 1 + t % (6 if afl else 3), replace=False)
        # then one client only, 500 times
        losses = patterns[(t // 7) % 5 if t < 500 else 2][sampled]
        weights = rule.decide(
            sampled, losses if afl else respond(losses, cdfs[t % 6], rule.low, rule.high)
        )
        assert weights.min() >= 0
        assert abs(weights.sum() - 1) < 1e-12
    assert rule.p.min() >= 0
    assert abs(rule.p.sum() - 1) < 1e-12
    assert rule.p.argmax() == 2


def test_one_client_has_all_the_weight():
    for rule in (OnlineNewtonStep(1), LinearisedFTRL(1, 0.5)):
        for r in (0.0, rule.high):
            np.testing.assert_array_equal(rule.decide(np.array([0]), np.array([r])), [1])


@pytest.mark.parametrize(
    ("sampled", "values", "message"),
    [
        ([0, 1, 2, 6, 4, 5], [0.1] * 6, r"must lie in 0\.\.5"),
        ([0, 1, -1, 3, 4, 5], [0.1] * 6, "from -1"),
        ([0, 1, 2, 2, 4, 5], [0.1] * 6, "is repeated"),
        ([0.0, 1.0], [0.1, 0.1], "integers"),
        ([0, 1], [0.1], "one each"),
        ([], [], "at least one"),
        ([0, 1, 2, 3, 4, 5], [0.1] * 5 + [np.nan], "not finite"),
        ([0, 1, 2, 3, 4, 5], [0.1] * 5 + [2.0], r"responses reach from 0.1 to 2"),
        ([0, 1, 2, 3, 4, 5], [0.1] * 5 + [-0.1], r"responses reach from -0.1"),
    ],
)
def test_bad_rounds_change_nothing(sampled, values, message):
    for rule in (OnlineNewtonStep(6), LinearisedFTRL(6, 0.9)):
        before = rule.state_dict()
        refused(lambda: rule.decide(sampled, values), message)
        assert_arrays(rule.state_dict(), before)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OnlineNewtonStep(0), "count = 0"),
        (lambda: OnlineNewtonStep(3, low=0.5), "C1 < C2"),
        (lambda: OnlineNewtonStep(3, ridge="papre"), "did you mean 'paper'"),
        (lambda: LinearisedFTRL(0, 0.5), "count = 0"),
        (lambda: LinearisedFTRL(3, 0.0), "ratio = 0"),
        (lambda: LinearisedFTRL(3, 1.5), "ratio = 1.5"),
        (lambda: LinearisedFTRL(3, 0.5, low=0.5), "C1 < C2"),
        (lambda: LinearisedFTRL(3, 0.5).drop([0, 1, 2]), "at least one must stay"),
        (lambda: OnlineNewtonStep(3).drop([3]), "must lie in"),
    ],
)
def test_bad_makers(make, message):
    refused(make, message)

"""Numbers of secure sums: noise that is whole, fixed point, and what a graph of few
neighbours leaves to chance.
"""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import ConfigRecord, MetricRecord
from scipy.integrate import quad
from scipy.stats import norm

from fedapps.algorithms.common.privacy import concentrated_epsilon, gaussian_delta, gaussian_epsilon
from fedapps.algorithms.secure import noise
from fedapps.algorithms.secure.fixed_point import (
    decode,
    encode,
    exponent,
    from_bytes,
    to_bytes,
    whole,
)
from fedapps.algorithms.secure.graph import (
    check_degree,
    local_threshold,
    neighbours,
    risks,
    shares_fault,
    tail,
)
from fedapps.algorithms.secure.vector import (
    Layout,
    Terms,
    content_digest,
    from_sum,
    sum_fault,
    to_vector,
)
from fedapps.strategies.base.messages import to_record
from tests.helpers import refused


@pytest.fixture
def repeatable(monkeypatch):
    """Random bits of a seed: a test of frequencies has to repeat."""
    rng = np.random.default_rng(1)
    monkeypatch.setattr(
        noise, "random_words", lambda n: rng.integers(0, 2**64, n, np.uint64, endpoint=False)
    )


def far(drawn, probabilities):
    """Return the largest deviation of frequencies, in standard errors."""
    count = len(drawn)
    return max(
        abs(float(np.mean(drawn == y)) - p) / np.sqrt(p * (1 - p) / count)
        for y, p in probabilities.items()
        if count * p > 50
    )


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1, 3, 7])
@pytest.mark.parametrize("near", [noise.NEAR, 2.0])
def test_frequencies_are_those_of_the_discrete_gaussian(scale, near, repeatable, monkeypatch):
    """``near`` = 2: every decision is made in decimal."""
    monkeypatch.setattr(noise, "NEAR", near)
    drawn = noise.discrete_gaussian(200_000 if near < 1 else 2_000, scale)
    weights = {y: np.exp(-(y**2) / (2 * scale**2)) for y in range(-12 * scale, 12 * scale + 1)}
    total = sum(weights.values())
    assert far(drawn, {y: w / total for y, w in weights.items()}) < 4.5


def test_frequencies_are_those_of_the_discrete_laplace(repeatable):
    drawn = noise.discrete_laplace(300_000, 4)
    q = np.exp(-1 / 4)
    assert far(drawn, {y: (1 - q) / (1 + q) * q ** abs(y) for y in range(-60, 61)}) < 4.5


def test_large_scales_have_the_right_moments(repeatable):
    scale = 2**40
    drawn = noise.discrete_gaussian(100_000, scale) / scale
    assert abs(drawn.mean()) < 4.5 / np.sqrt(100_000)
    assert abs(drawn.var() - 1) < 4.5 * np.sqrt(2 / 100_000)
    assert abs(np.mean(drawn**4) - 3) < 4.5 * np.sqrt(96 / 100_000)


def test_noise_is_never_that_of_a_seed():
    np.random.seed(0)  # noqa: NPY002
    one = noise.discrete_gaussian(50, 2**20)
    np.random.seed(0)  # noqa: NPY002
    assert (one != noise.discrete_gaussian(50, 2**20)).any()


def test_the_accountant_of_concentrated_privacy():
    """Never below the exact curve of Gaussian noise, and near to it; Gaussian noise of
    multiplier z is 1 / (2 z^2)-concentrated.
    """
    for z, rounds in ((0.5, 1), (1.0, 1), (1.0, 50), (4.0, 300)):
        exact = gaussian_epsilon(z, rounds, 1e-5)
        assert exact <= concentrated_epsilon(rounds / (2 * z**2), 1e-5) <= 1.1 * exact + 0.05
    assert concentrated_epsilon(0.0, 1e-5) == 0.0


def test_the_accountant_is_the_least_over_all_orders():
    rho, delta = 0.3, 1e-6
    orders = 1 + np.logspace(-3, 3, 400_000)
    bounds = rho * orders + (
        -np.log(delta) + (orders - 1) * np.log1p(-1 / orders) - np.log(orders)
    ) / (orders - 1)
    assert concentrated_epsilon(rho, delta) == pytest.approx(bounds.min(), abs=1e-6)


# --- fixed point ----------------------------------------------------------------------

# Fixed point: sums are exact, errors are bounded, what does not fit is refused.


@pytest.mark.parametrize("count", [3, 20, 1000])
@pytest.mark.parametrize("bound", [1e-3, 1.0, 16.0])
def test_the_weighted_mean_is_within_the_bound(count, bound):
    rng = np.random.default_rng(count)
    most = 2**16
    weights = rng.integers(1, most, count)
    weights[0], weights[1] = most, 1
    values = rng.uniform(-bound, bound, (count, 50))
    values[0], values[:, 0], values[:, 1] = bound, bound, -bound
    e = exponent(count, most * bound)
    total = np.zeros(50, np.uint64)
    for weight, row in zip(weights, values, strict=True):
        total += from_bytes(to_bytes(encode(weight * row, most * bound, e, "update")))
    error = np.abs(decode(total, e) - (weights[:, None] * values).sum(0)).max() / weights.sum()
    assert error <= count / 2 * 2.0**-e / weights.sum() + 1e-15 * bound
    assert error <= 2.0**-20 * bound


def test_largest_sums_do_not_wrap():
    for count, most in ((3, 1.0), (7, 3.3), (1000, 65535 * 16.0)):
        e = exponent(count, most)
        for sign in (1, -1):
            assert decode(
                encode(np.full(2, sign * most), most, e, "update") * np.uint64(count), e
            ) == pytest.approx(sign * count * most, rel=1e-9)


def test_no_bit_is_left_over_and_none_is_missing():
    """The error of a number, 2^-e / 2, is at most n most / 2^46. Three times almost
    1/3, each rounded up, would be 2^47 + 1 with one bit more.
    """
    for count, most in ((1024, 1.0), (1000, 2.0**16)):
        assert 0.5 * 2.0 ** -exponent(count, most) <= count * most / 2**46
    third = np.nextafter(1 / 3, 0)
    words = encode(np.full(1, third), third, exponent(3, third), "update")
    assert decode(words + words + words, exponent(3, third))[0] == pytest.approx(1.0, abs=1e-13)


def test_bytes_round_trip_modulo_two_to_the_48():
    values = np.array([0, 1, -1, 2**47 - 1, -(2**47)], np.int64)
    octets = to_bytes(values.view(np.uint64))
    assert octets.shape == (30,)
    assert (whole(from_bytes(octets)) == values).all()


# --- graph ----------------------------------------------------------------------------

# Graphs of few neighbours, and what they leave to chance.


def test_the_tail_is_that_of_a_draw():
    drawn = np.random.default_rng(0).hypergeometric(7, 13, 8, 200_000)
    for least in range(9):
        assert tail(20, 7, 8, least) == pytest.approx((drawn >= least).mean(), abs=5e-3)
    assert tail(20, 7, 8, 0) == pytest.approx(1)


def test_rings_are_drawn_anew():
    names = [str(k) for k in range(20)]
    assert neighbours(names, 4) != neighbours(names, 4)
    assert all(len(near) == 19 for near in neighbours(names).values())


def test_all_neighbours_leave_nothing_to_chance_and_few_do():
    assert (risks(100, 0, 10, 10), risks(100, 99, 10, 10)) == ((0, 0), (0, 0))
    seen, failed = risks(1000, 10, 50, 50)
    assert seen > 1e-6
    assert failed > 1e-6
    # a threshold of a client's neighbours is corrupted, or a ring falls apart
    assert risks(100, 20, 50, 0)[0] == pytest.approx(100 * (tail(99, 50, 20, 16) + 0.5**10))


def test_the_degree_that_an_error_names_is_allowed():
    with pytest.raises(ValueError, match=r"choose \d+") as caught:
        check_degree(1000, 2, 50, 50)
    degree = int(str(caught.value).rpartition(" ")[2])
    check_degree(1000, degree, 50, 50)
    refused(lambda: check_degree(1000, degree - 2, 50, 50), "choose")
    assert local_threshold(1000, degree, 50) > degree / 2


@pytest.mark.parametrize(
    ("weights", "corrupted", "shown"),
    [
        ([1, 1, 1], 0, False),
        ([3, 2, 1], 0, False),  # as much as the others together
        ([3.1, 2, 1], 0, True),
        ([0, 0, 0], 0, True),  # no mean
        ([1, -1e-9, 1], 0, True),
        ([2, 2, 1, 1], 1, False),
        ([2, 2, 1, 0.5], 1, True),  # one that colludes knows its own part
    ],
)
def test_weights_that_would_show_a_client(weights, corrupted, shown):
    named = {str(place): weight for place, weight in enumerate(weights)}
    assert bool(shares_fault(named, named, corrupted)) == shown
    assert shares_fault(named, [*named, "another"], corrupted)


# --- privacy of Gaussian noise --------------------------------------------------------


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0, 8.0])
def test_delta_is_the_hockey_stick_divergence_of_two_gaussians(mu, epsilon):
    """By its definition: the integral of max(0, p - e^epsilon q) for p = N(mu, 1), q =
    N(0, 1).
    """

    def excess(x):
        return max(0.0, norm.pdf(x, mu) - math.exp(epsilon) * norm.pdf(x))

    expected, _ = quad(excess, -12, 12 + mu, points=[epsilon / mu + mu / 2], limit=200)
    assert gaussian_delta(mu, epsilon) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_epsilon_inverts_delta_and_grows_with_releases():
    result = [gaussian_epsilon(1.3, t, 1e-5) for t in (0, 1, 2, 10, 1000, 10**6)]
    assert (result[0], result) == (0, sorted(result))
    for t, epsilon in zip((1, 2, 10, 1000, 10**6), result[1:], strict=True):
        assert gaussian_delta(math.sqrt(t) / 1.3, epsilon) == pytest.approx(1e-5, rel=1e-4)
    assert gaussian_epsilon(1e6, 1, 1e-5) == 0  # so much noise that delta alone covers it


# --- replies as vectors ---------------------------------------------------------------

# Sums are exact for whole numbers, means to the quantisation.

TERMS = Terms("model", "num-examples", True, 5, 16.0, 65_535, 0.0, False)
SENT = {"w": np.ones((2, 3), np.float32), "count": np.array(4), "none": np.zeros((0, 2))}


def summed(terms, sent, replies):
    """Return what the sum of replies (arrays, metrics) stands for, and the layout."""
    vectors = [to_vector(terms, sent, *reply) for reply in replies]
    layouts = {layout.to_text() for _, layout in vectors}
    assert len(layouts) == 1
    layout = Layout.from_text(layouts.pop())
    total = np.sum([from_bytes(to_bytes(words)) for words, _ in vectors], 0, dtype=np.uint64)
    assert layout.size() == len(total)
    assert sum_fault(terms, layout, total, len(replies)) == ""
    return from_sum(terms, layout, sent, total)


def reply(shift, count, **metrics):
    arrays = {name: array + np.asarray(shift, array.dtype) for name, array in SENT.items()}
    return arrays, {"num-examples": count, **metrics}


@pytest.mark.parametrize("weighted", [True, False])
def test_means_are_weighted_and_keep_their_types(weighted):
    replies = [reply(2, 10, loss=1.0, of=[1.0, 2.0]), reply(-1, 30, loss=3.0, of=[5.0, 0.0])]
    arrays, metrics, count = summed(replace(TERMS, weighted=weighted), SENT, replies)
    mean = (2 * 10 - 30) / 40 if weighted else 0.5
    np.testing.assert_allclose(arrays["w"], 1 + mean, atol=1e-6)
    assert {name: (array.shape, array.dtype) for name, array in arrays.items()} == {
        name: (array.shape, array.dtype) for name, array in SENT.items()
    }
    assert (arrays["count"], count) == (round(4 + mean), 40)
    # metrics are means over samples either way
    assert metrics["loss"] == pytest.approx((10 + 90) / 40, rel=1e-4)
    np.testing.assert_allclose(metrics["of"], [(10 + 150) / 40, 20 / 40], rtol=1e-4)


SUMS = replace(TERMS, replies="sums", weighted=False)


def test_sums_of_whole_numbers_are_exact():
    rows = np.random.default_rng(0).integers(-(2**41), 2**41, (5, 200))
    arrays, _, count = summed(
        SUMS, {}, [({"sums": row}, {"num-examples": 7 + k}) for k, row in enumerate(rows)]
    )
    assert (arrays["sums"] == rows.sum(0)).all()
    assert count == 45


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *(
            (lambda scale=scale: noise.discrete_gaussian(1, scale), "scale =")
            for scale in [0, 2**45 + 1]
        ),
        *(
            (
                lambda bad=bad: encode(np.array([0.5, bad]), 1.0, 20, "'w'"),
                r"'w' is above 1, or not finite: it fits into no",
            )
            for bad in [np.nan, np.inf, 1.01, -1.01]
        ),
        (lambda: exponent(1000, 2.0**40), "do not fit into 48 bits"),
        *(
            (lambda z=z, delta=delta: gaussian_epsilon(z, 1, delta), key)
            for z, delta, key in [
                (0, 1e-5, "noise-multiplier"),
                (-1, 1e-5, "noise"),
                (1, 0, "delta"),
                (1, 1, "delta"),
            ]
        ),
        # As a change of 64 bits each of these is 1 or -1.
        *(
            (
                lambda sent=sent, reply=reply: to_vector(
                    TERMS, {"n": sent}, {"n": reply}, {"num-examples": 1}
                ),
                "array 'n' holds a number above 2",
            )
            for sent, reply in [
                (np.array([0], np.uint64), np.array([2**64 - 1], np.uint64)),
                (np.array([2**63 - 1]), np.array([-(2**63)])),
                (np.array([-(2**63)]), np.array([2**63 - 1])),
            ]
        ),
        *(
            (
                lambda terms=terms, arrays=arrays, count=count: to_vector(
                    terms, SENT, arrays, {"num-examples": count}
                ),
                why,
            )
            for terms, arrays, count, why in [
                (TERMS, SENT | {"w": np.ones(5)}, 10, "other names or shapes"),
                (TERMS, SENT, 0, "above 0 and at most max-weight"),
                (
                    replace(TERMS, replies="update"),
                    {"z": np.ones(2, complex)},
                    1,
                    "take real numbers",
                ),
            ]
        ),
        (lambda: from_bytes(np.zeros(29, np.uint8)), "29 bytes are no vector"),
        (lambda: neighbours([str(k) for k in range(20)], 5), "must be an even number"),
        (lambda: check_degree(1000, 10, 50, 50), r"neighbours = 10: .* choose (\d+)"),
        (
            lambda: to_vector(SUMS, {}, {"sums": np.array([2**46])}, {"num-examples": 1}),
            "fits into no secure sum",
        ),
        (lambda: replace(TERMS, clients=2000).check(), "choose at most 33554"),
    ],
)
def test_numbers_that_the_protocol_cannot_hold_are_refused(call, message):
    refused(call, message)


CLIPPED = replace(TERMS, weighted=False, max_norm=1.0, clip=True)
NOISY = replace(CLIPPED, noise=0.5)


@pytest.mark.parametrize(
    ("terms", "place", "lie", "why"),
    [
        (TERMS, 0, 2.0**46, "a number of array 'w'"),
        (TERMS, 0, 17.0 * 60, "a number of array 'w'"),  # mean change above bound = 16
        (TERMS, 6, 2.0**46, "a number of array 'count'"),
        (TERMS, -3, 2.0**46, "a metric"),
        (TERMS, -2, 10.0, "num-examples = 60, weight 70"),
        (TERMS, slice(-2, None), 4 * 65_536.0, "num-examples = 262204"),
        (TERMS, slice(-2, None), -61.0, "num-examples = -1"),
        (CLIPPED, -2, 1.0, "num-examples = 60, weight 4"),
        (CLIPPED, slice(0, 6), 1.5, "its norm is"),
        (NOISY, slice(0, 6), 15.0, "its norm is|a number of array 'w'"),
        (NOISY, slice(-2, None), 1.0, "num-examples = 4, weight 4"),
    ],
)
def test_a_sum_that_no_honest_clients_have_is_seen(terms, place, lie, why):
    """Three clients; one adds to its words what the lie is as a number."""
    rows = [reply(0.0, 10, loss=1.0), reply(0.1, 20, loss=2.0), reply(-0.1, 30, loss=3.0)]
    vectors = [to_vector(terms, SENT, *row, honest=2) for row in rows]
    total, layout = np.sum([words for words, _ in vectors], 0, dtype=np.uint64), vectors[0][1]
    assert sum_fault(terms, layout, total, 3, honest=2) == ""
    e = 0
    if abs(lie) < 2.0**40:
        e = terms.exponents()["real" if place == 0 or place == slice(0, 6) else "weight"][0]
    total[place] += np.array(np.ldexp(lie, e)).astype(np.int64).astype(np.uint64)
    assert re.match(why, sum_fault(terms, layout, total, 3, honest=2))


def test_decided_weights_are_the_sum_of_those_that_were_sent():
    terms = replace(TERMS, clear=["loss"])
    vectors = [to_vector(terms, SENT, *reply(0.1, n), decided=w) for n, w in ((10, 5.0), (20, 7.5))]
    total, layout = np.sum([words for words, _ in vectors], 0, dtype=np.uint64), vectors[0][1]
    assert [sum_fault(terms, layout, total, 2, weight) for weight in (12.5, 13.0)] == [
        "",
        "num-examples = 30, weight 12.5",
    ]


def test_a_thousand_clients_are_not_too_many_for_the_weights():
    replace(TERMS, clients=1000).check()


def test_all_of_a_message_is_in_the_digest():
    """Also what an app may go by without a look at names: order, types of records."""
    first, second = np.zeros(2), np.ones(2)
    content = {
        "config": ConfigRecord({"round": 1, "rate": 0.1}),
        "arrays": to_record(["a", "b"], [first, second]),
    }
    found = content_digest("train", "1", content, TERMS)
    assert found == content_digest("train", "1", dict(content), TERMS)
    for other in (
        ("train", "1", content | {"config": ConfigRecord({"round": 2, "rate": 0.1})}, TERMS),
        ("train", "1", content | {"config": ConfigRecord({"round": 1.0, "rate": 0.1})}, TERMS),
        ("train", "1", content | {"config": MetricRecord({"round": 1, "rate": 0.1})}, TERMS),
        ("train", "1", content | {"other": ConfigRecord({"round": 1, "rate": 0.1})}, TERMS),
        ("train", "1", content | {"arrays": to_record(["b", "a"], [second, first])}, TERMS),
        ("train", "1", content | {"arrays": to_record(["a", "b"], [second, first])}, TERMS),
        ("train", "1", content | {"True": ConfigRecord()}, TERMS),
        ("train", "1", content, replace(TERMS, bound=8.0)),
        ("train.other", "1", content, TERMS),
        ("train", "2", content, TERMS),
    ):
        assert found != content_digest(*other)


@pytest.mark.parametrize("count", [3, 50, 1000])
def test_a_mean_by_decided_weights_is_within_its_bound(count):
    """``n^2 p 2^-45`` of the bound on a number; metrics keep the sample counts."""
    rng = np.random.default_rng(count)
    terms = replace(TERMS, clients=count, replies="update", max_weight=2**26 // max(count, 1024))
    rows = rng.uniform(-16, 16, (count, 20))
    shares = rng.dirichlet(np.full(count, 0.3))
    weights = terms.max_weight * (shares / shares.max())
    total = np.zeros(20 + 3, np.uint64)
    for k, (row, weight) in enumerate(zip(rows, weights, strict=True)):
        words, layout = to_vector(
            terms, {}, {"w": row}, {"num-examples": 1 + k, "loss": 2.0 * k}, float(weight)
        )
        total += words
    arrays, metrics, samples = from_sum(terms, layout, {}, total)
    np.testing.assert_allclose(
        arrays["w"], shares @ rows, rtol=0, atol=(count**2 * shares.max() * 2.0**-45 * 16) + 1e-14
    )
    counts = np.arange(1, count + 1)
    assert samples == counts.sum()
    assert metrics["loss"] == pytest.approx(2 * (counts - 1) @ counts / counts.sum(), rel=1e-3)

"""Replies as vectors: sums are exact for whole numbers, means to the quantisation."""

import re
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import ConfigRecord, MetricRecord

from fedapps.algorithms.secure.fixed_point import from_bytes, to_bytes
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
    assert (arrays["w"].dtype, arrays["w"].shape) == (np.float32, (2, 3))
    assert (arrays["count"], arrays["count"].dtype) == (round(4 + mean), SENT["count"].dtype)
    assert (arrays["none"].shape, count) == ((0, 2), 40)
    # metrics are means over samples either way
    assert metrics["loss"] == pytest.approx((10 + 90) / 40, rel=1e-4)
    np.testing.assert_allclose(metrics["of"], [(10 + 150) / 40, 20 / 40], rtol=1e-4)


def test_sums_of_whole_numbers_are_exact():
    terms = replace(TERMS, replies="sums", weighted=False)
    rows = np.random.default_rng(0).integers(-(2**41), 2**41, (5, 200))
    arrays, _, count = summed(
        terms, {}, [({"sums": row}, {"num-examples": 7 + k}) for k, row in enumerate(rows)]
    )
    assert (arrays["sums"] == rows.sum(0)).all()
    assert count == 45
    refused(
        lambda: to_vector(terms, {}, {"sums": np.array([2**46])}, {"num-examples": 1}),
        "fits into no secure sum",
    )


@pytest.mark.parametrize(
    ("sent", "reply"),
    [
        (np.array([0], np.uint64), np.array([2**64 - 1], np.uint64)),
        (np.array([2**63 - 1]), np.array([-(2**63)])),
        (np.array([-(2**63)]), np.array([2**63 - 1])),
    ],
)
def test_whole_numbers_that_would_wrap_are_refused(sent, reply):
    """As a change of 64 bits each of these is 1 or -1."""
    refused(
        lambda: to_vector(TERMS, {"n": sent}, {"n": reply}, {"num-examples": 1}),
        "array 'n' holds a number above 2",
    )


@pytest.mark.parametrize(
    ("terms", "arrays", "count", "why"),
    [
        (TERMS, SENT | {"w": np.ones(5)}, 10, "other names or shapes"),
        (TERMS, SENT, 0, "above 0 and at most max-weight"),
        (replace(TERMS, replies="update"), {"z": np.ones(2, complex)}, 1, "take real numbers"),
    ],
)
def test_other_arrays_than_were_sent_are_refused(terms, arrays, count, why):
    refused(lambda: to_vector(terms, SENT, arrays, {"num-examples": count}), why)


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
    assert sum_fault(terms, layout, total, 2, 12.5) == ""
    assert sum_fault(terms, layout, total, 2, 13.0) == "num-examples = 30, weight 12.5"


def test_too_many_clients_for_the_weights_are_refused():
    replace(TERMS, clients=1000).check()
    refused(lambda: replace(TERMS, clients=2000).check(), "choose at most 33554")


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

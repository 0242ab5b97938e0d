"""Boosting on values: gradients, steps, clips, the residual identity and the Lipschitz
extension, by closed forms and brute force.
"""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load, save

from fedapps.algorithms.boosting import additive, lipschitz
from fedapps.algorithms.boosting.additive import (
    Additive,
    Block,
    named,
    pack_blocks,
    stacked,
    unpack_blocks,
    values_at,
)
from fedapps.algorithms.boosting.functional import (
    LOSSES,
    Plan,
    boost,
    check_labels,
    coded,
)
from fedapps.algorithms.boosting.lipschitz import (
    LipschitzExtension,
    least_lipschitz,
    lipschitz_constant,
)
from fedapps.algorithms.boosting.step_sizes import (
    LOSS_NAMES,
    SCHEDULES,
    clip_bounds,
    step_sizes,
    summed_steps,
)
from tests.helpers import refused


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("outputs", [1, 2, 5])
@pytest.mark.parametrize("loss", LOSS_NAMES)
def test_the_gradient_is_that_of_the_loss(loss, outputs):
    values = randn(7, outputs).double().requires_grad_()
    labels = torch.arange(7) % max(2, outputs)
    # the mean counts each point a seventh
    wanted = torch.autograd.grad(7 * LOSSES[loss].mean(values, labels), values)[0]
    torch.testing.assert_close(LOSSES[loss].gradient(values.detach(), labels), wanted)


def test_codes_of_labels():
    assert coded(torch.tensor([0, 2, 1]), 3).tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]
    assert coded(torch.tensor([0, 1]), 1).tolist() == [[-1], [1]]


@pytest.mark.parametrize(
    ("labels", "outputs", "message"),
    [
        (
            [0, 3],
            3,
            r"labels 0..3 of type torch.int64, but the function has outputs for 3 classes: labels are "
            r"whole, 0 to 2",
        ),
        ([-1, 1], 3, "labels -1..1"),
        ([0, 2], 1, "has outputs for 2 classes"),
        ([0.0, 1.0], 2, "of type torch.float32"),
    ],
)
def test_labels_outside_the_range(labels, outputs, message):
    refused(lambda: check_labels(torch.tensor(labels), outputs), message)
    check_labels(torch.tensor([0, 1]), outputs)


def test_steps_are_the_printed_ones_and_never_too_long():
    wanted = {
        ("decay", 3, 2, 0.0, 10.0, 99.0): [10 / 8, 10 / 9],
        ("homogeneous", 3, 2, 0.5, 1.0, 99.0): [4 / 8, 4 / 9],
        ("general", 3, 2, 0.5, 1.0, 99.0): [8 / 8, 8 / 9],
        ("general", 0, 1, 1.0, 1.0, 99.0): [1.0],  # 4 / 2, cut to 1 / mu
        ("decay", 0, 1, 0.005, 400.0, 10.0): [10.0],
    }
    assert {given: step_sizes(*given) for given in wanted} == wanted
    for schedule in SCHEDULES:
        steps = [eta for t in range(50) for eta in step_sizes(schedule, t, 3, 0.3, 8.0, 5.0)]
        assert all(a >= b for a, b in itertools.pairwise(steps))
        assert max(steps) * 0.3 <= 1


def test_the_steps_of_a_round_sum_to_one_block():
    etas, mu, f, learners = [0.9, 0.4, 1.7], 0.3, randn(6, 2), randn(3, 6, 2, seed=1)
    g = f
    for eta, h in zip(etas, learners, strict=True):
        g = g - eta * (h + mu * g)
    shrink, a = summed_steps(etas, mu)
    torch.testing.assert_close(shrink * f - torch.tensordot(torch.tensor(a), learners, 1), g)


def noisy(gamma, seed=0):
    """The worst oracle that satisfies ``|h - target| <= (1 - gamma) max |target|``."""
    rng = np.random.default_rng(seed)

    def fit(target):
        h = target + (1 - gamma) * target.abs().max() * torch.tensor(
            rng.choice([-1.0, 1.0], size=target.shape), dtype=target.dtype
        )
        return h, h

    return fit


@pytest.mark.parametrize(("sign", "mu", "gamma"), [(1, 0.1, 1.0), (1, 0.1, 0.3), (-1, 1.0, 0.6)])
def test_the_steps_are_the_printed_recursion(sign, mu, gamma):
    """g <- g - eta (h + mu g), h = Q(D + d), D <- D + d - h. With a perfect oracle it
    is gradient descent; FFGB.L has -h, and mu = 1.
    """
    y, gradient = torch.arange(8) % 3, LOSSES["cross-entropy"].gradient
    plan, oracle = Plan([3.0, 2.0, 1.5, 1.2, 1.0], mu, sign), noisy(gamma)
    learners, result, residual = boost(randn(8, 3), lambda g: gradient(g, y), noisy(gamma), plan)
    g, delta = randn(8, 3), torch.zeros(8, 3)
    for eta, learner in zip(plan.etas, learners, strict=True):
        wanted = gradient(g, y)
        h, _ = oracle(delta + wanted)
        torch.testing.assert_close(learner, h)
        delta = delta + wanted - h
        g = g - eta * (sign * h + mu * g)
    torch.testing.assert_close(result, g)
    torch.testing.assert_close(residual, delta)
    *_, none = boost(g, lambda g: gradient(g, y), oracle, replace(plan, residual=False))
    assert not none.any()


@pytest.mark.parametrize("gamma", [0.25, 0.5, 1.0])
def test_the_clips_never_act_on_the_support(gamma):
    """With gradients up to G and an oracle of edge gamma, Algorithm 3 makes the steps
    of Algorithm 2.
    """
    y, gradient = torch.arange(30) % 4, LOSSES["cross-entropy"].gradient
    etas, mu = [3.0] * 12, 0.05
    upper, lower = clip_bounds(1.0, gamma)
    results = [
        boost(
            randn(30, 4),
            lambda g: gradient(g, y),
            noisy(gamma, seed=3),
            Plan(etas, mu, clip=a, clip_residual=b),
        )
        for a, b in ((None, None), (upper * (1 + 1e-5), lower + 1e-5))
    ]
    assert torch.equal(results[0][1], results[1][1])
    assert float(results[0][2].abs().max()) <= lower + 1e-5
    # A tenth of the bounds acts: the comparison could fail.
    other = boost(
        randn(30, 4),
        lambda g: gradient(g, y),
        noisy(gamma, seed=3),
        Plan(etas, mu, clip=upper / 10, clip_residual=lower / 10),
    )
    assert not torch.equal(results[0][1], other[1])
    # The function stays below G^2 / mu, itself below the B = 2 G / (mu gamma) beyond
    # which a projection would act.
    assert upper / mu < 2 / (mu * gamma)


# --- the Lipschitz extension ----------------------------------------------------------


@pytest.mark.parametrize("block", [7, 4_000_000])
def test_the_extension_is_the_printed_minimum(block, monkeypatch):
    monkeypatch.setattr(lipschitz, "BLOCK", block)
    x, y, points = randn(20, 3), randn(20, 2, seed=1), randn(11, 3, seed=2)
    wanted = [
        [min(float(y[j, c] + 1.7 * (p - x[j]).norm()) for j in range(20)) for c in range(2)]
        for p in points
    ]
    torch.testing.assert_close(LipschitzExtension(x, y, 1.7)(points), torch.tensor(wanted))


def test_it_passes_through_labels_that_are_lipschitz_and_has_no_steeper_slope():
    x, y = randn(40, 3), randn(40, 2, seed=1)
    least, _ = least_lipschitz(x, y)
    u = LipschitzExtension(x, y, least)
    torch.testing.assert_close(u(x), y, atol=1e-4, rtol=0)
    a, b = randn(500, 3, seed=5), randn(500, 3, seed=6)
    assert bool(((u(a) - u(b)).abs().max(1).values <= least * (a - b).norm(dim=1) + 1e-4).all())
    points = a.clone().requires_grad_()
    torch.testing.assert_close(
        torch.autograd.grad(u(points)[:, 0].sum(), points)[0].norm(dim=1), torch.full((500,), least)
    )


@pytest.mark.parametrize("block", [13, 4_000_000])
def test_the_least_constant_by_brute_force(block, monkeypatch):
    monkeypatch.setattr(lipschitz, "BLOCK", block)
    x, y = randn(15, 4), randn(15, 3, seed=1)
    slopes = {
        (i, j): float((y[i] - y[j]).abs().max() / (x[i] - x[j]).norm())
        for i in range(15)
        for j in range(15)
        if i != j
    }
    worst = max(slopes, key=slopes.get)
    least, pair = least_lipschitz(x, y)
    assert (least, set(pair)) == (pytest.approx(slopes[worst], rel=1e-5), set(worst))
    assert [lipschitz_constant(x, y, floor) for floor in (0.0, 2 * least)] == [least, 2 * least]
    refused(
        lambda: lipschitz_constant(x, y, 0.9 * least),
        f"lipschitz = .* is too small: samples {pair[0]} and {pair[1]} need {least:.6g}",
    )


def test_equal_points_with_different_labels_have_no_constant():
    x, y = torch.tensor([[0.0], [1.0], [1.0]]), torch.tensor([[0.0], [1.0], [0.0]])
    assert np.isinf(least_lipschitz(x, y)[0])
    refused(
        lambda: lipschitz_constant(x, y, 0.0),
        "samples 1 and 2 are the same point with different labels",
    )
    assert least_lipschitz(x[:1], y[:1])[0] == 0


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("loss", LOSSES)
def test_arrays_are_treated_as_tensors_are(loss, outputs):
    # large values: nothing overflows
    values, labels = randn(9, outputs) * 40, torch.arange(9) % max(2, outputs)
    for name in ("gradient", "mean"):
        ours, theirs = (
            getattr(LOSSES[loss], name)(*pair)
            for pair in ((values.numpy(), labels.numpy()), (values, labels))
        )
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


# --- the additive function ------------------------------------------------------------

# Brute-force sums, round trips of its two packed forms, pruning, and what it refuses.


def linear(learners, x):
    return torch.matmul(x, learners["w"])


def block(m, shrink, seed):
    rng = np.random.default_rng(seed)
    return Block(shrink, rng.normal(size=m), {"w": rng.normal(size=(m, 3, 2)).astype(np.float32)})


@pytest.fixture
def function():
    return Additive(None, [block(4, 0.9, 0), block(0, 0.8, 1), block(3, 0.7, 2)])


X = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("clip", [None, 0.5])
def test_it_is_the_sum_that_its_definition_says_each_learner_cut_by_itself(
    function, clip, monkeypatch
):
    most, f = clip or np.inf, torch.zeros(10, 2)
    function.clip = clip
    for b in function.blocks:
        f = b.shrink * f
        for c, w in zip(b.coefficients, b.learners["w"], strict=True):
            f = f + c * (X @ torch.tensor(w)).clamp(-most, most)
    torch.testing.assert_close(values_at(function, X, 2, linear), f)
    torch.testing.assert_close(values_at(function, X, 2, linear, points=3), f)
    monkeypatch.setattr(additive, "BATCH", 1)  # learner by learner
    torch.testing.assert_close(values_at(function, X, 2, linear), f)
    assert (len(function), function.version) == (7, 3)


@pytest.mark.parametrize("clip", [None, 0.5])
def test_it_survives_a_file(function, clip):
    whole = Additive(clip, function.blocks)
    again = Additive.from_arrays(load(save(whole.to_arrays())))  # the order of the names may change
    assert again.clip == clip
    assert torch.equal(values_at(again, X, 2, linear), values_at(whole, X, 2, linear))
    parts = whole.head()
    for number, b in enumerate(whole.blocks):
        parts |= named(number, b)
    assert parts.keys() == whole.to_arrays().keys()


def test_it_survives_a_message(function):
    arrays, names = pack_blocks(function.blocks)
    again = unpack_blocks(arrays, names)
    assert ([b.shrink for b in again], [len(b) for b in again]) == ([0.9, 0.8, 0.7], [4, 0, 3])
    assert torch.equal(
        values_at(Additive(None, again), X, 2, linear), values_at(function, X, 2, linear)
    )
    assert unpack_blocks(*pack_blocks([])) == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: Block(1.0, np.zeros(2), {"w": np.zeros((3, 1))}),
            r"2 coefficients for learners whose arrays hold \{'w': 3\}",
        ),
        (lambda: Additive.from_arrays({"weight": np.zeros(2)}), "no array 'shrinks'"),
        (
            lambda: stacked([{"w": np.zeros((2, 3))}, {"w": np.zeros((2, 4))}]),
            "all must be of one kind",
        ),
    ],
)
def test_what_it_refuses(call, message):
    refused(call, message)

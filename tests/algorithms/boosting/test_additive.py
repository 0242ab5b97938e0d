"""The additive function: brute-force sums, round trips of its two packed forms,
pruning, and what it refuses.
"""

import numpy as np
import pytest
import torch
from safetensors.numpy import load, save

from fedapps.algorithms.boosting import additive
from fedapps.algorithms.boosting.additive import (
    Additive,
    Block,
    named,
    pack_blocks,
    stacked,
    unpack_blocks,
    values_at,
)


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
    with pytest.raises(ValueError, match=message):
        call()

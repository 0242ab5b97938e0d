"""Random numbers of torch modules, on every kind of device."""

import pytest
import torch

from fedapps.algorithms.common.modules import torch_seeded


def test_the_cpu_is_seeded_and_its_state_comes_back():
    before = torch.get_rng_state()
    with torch_seeded(3):
        drawn = torch.rand(2)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(drawn, torch.rand(2, generator=torch.Generator().manual_seed(3)))


@pytest.mark.parametrize(
    ("name", "seed_all", "which"),
    [
        ("cuda:1", "manual_seed_all", [torch.device("cuda", 1)]),
        ("xpu", "manual_seed_all", [torch.device("xpu")]),
        ("mps", "manual_seed", []),
    ],
)
def test_another_device_is_seeded_too_and_its_state_comes_back(name, seed_all, which, monkeypatch):
    """Asked of torch, in this order: no such device is needed."""
    asked = []

    def note(what, returned=None):
        monkeypatch.setattr(kind, what, lambda *given: (asked.append((what, *given)), returned)[1])

    kind = torch.get_device_module(torch.device(name))
    note("get_rng_state", "state")
    note(seed_all)
    note("set_rng_state")
    with torch_seeded(3, torch.device(name)):
        asked.append("drawn")
    assert asked == [
        ("get_rng_state", *which),
        (seed_all, 3),
        "drawn",
        ("set_rng_state", "state", *which),
    ]

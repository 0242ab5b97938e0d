import re
from dataclasses import dataclass, fields

import pytest

from fedapps.algorithms.common.options import Declared, Options, kebab, option, with_choices


@dataclass(frozen=True)
class Example(Options):
    """Options of an example."""

    local_steps: int = option(1, "steps of a round", low=1)
    momentum_: float = option(0.5, "memory", low=0, high=1, open_high=True)
    mode: str = option("slow", "how", choices=["slow", "fast"])
    free: str = option("", "anything")

    def check(self) -> None:
        """Fast is one step."""
        if self.mode == "fast" and self.local_steps > 1:
            raise ValueError(f"local-steps = {self.local_steps}: fast is one step")


@dataclass(frozen=True)
class Wider(Example):
    """One more option, and fewer modes."""

    mode: str = with_choices(Example, "mode", ["slow"])
    rate: float = option(0.1, "of the steps", low=0, open_low=True)


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (Example, {"local_steps": 0}, "local-steps = 0: choose a value in [1, inf)"),
        (Example, {"momentum_": 1.0}, "momentum = 1.0: choose a value in [0, 1)"),
        (Example, {"momentum_": float("nan")}, "momentum = nan: choose a value in [0, 1)"),
        (Example, {"mode": "slw"}, "mode = 'slw': did you mean 'slow'? choose one of slow, fast"),
        (Example, {"mode": "fast", "local_steps": 2}, "local-steps = 2: fast is one step"),
        (Wider, {"local_steps": 0}, "local-steps = 0: choose a value in [1, inf)"),
        (Wider, {"rate": 0.0}, "rate = 0.0: choose a value in (0, inf)"),
        (Wider, {"mode": "fast"}, "mode = 'fast': choose one of slow"),
    ],
)
def test_what_is_declared_is_checked(kind, given, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        kind(**given)


def test_defaults_order_and_help_are_those_of_the_declaration():
    assert Example() == Example(1, 0.5, "slow", "")
    assert [kebab(part.name) for part in fields(Wider)] == [
        "local-steps",
        "momentum",
        "mode",
        "free",
        "rate",
    ]
    (mode,) = (part for part in fields(Wider) if part.name == "mode")
    assert (mode.default, mode.metadata["option"].help) == ("slow", "how")


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        (Declared("", choices=("a", "b")), "a | b"),
        (Declared("", low=1), "from 1"),
        (Declared("", low=0, open_low=True), "above 0"),
        (Declared("", low=0, high=1, open_high=True), "[0, 1)"),
        (Declared("", low=0, high=1, open_low=True), "(0, 1]"),
        (Declared(""), ""),
    ],
)
def test_what_is_allowed_in_words(declared, words):
    assert declared.allowed == words

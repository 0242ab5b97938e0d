"""Warm start: a few rounds of one method, then another method."""

from dataclasses import dataclass

from algorithms.common.options import with_choices
from fedapps.methods.method import Method
from strategies import WarmStartOptions

# Methods that a warm start can compose: they start from the task's torch model and send
# models like it to the clients.
COMPOSABLE = (
    "fedavg",
    "fedprox",
    "fedadam",
    "fedyogi",
    "fedadagrad",
    "aaggff-s",
    "aaggff-d",
    "afl",
    "q-fedavg",
    "term",
    "fedmgda",
    "propfair",
    "finetune",
    "superfed-mm",
    "superfed-lm",
    "apfl",
    "pfedme",
    "ditto",
    "scaffold",
    "feddyn",
    "ffgb-distill",
    "fedavg-distill",
)


@dataclass(frozen=True)
class TwoMethods(WarmStartOptions):
    """Options of a warm start, restricted to the names of composable methods."""

    first: str = with_choices(WarmStartOptions, "first", COMPOSABLE)
    then: str = with_choices(WarmStartOptions, "then", COMPOSABLE)


METHODS: dict[str, Method] = {
    "warm-start": Method(
        summary="a few rounds of one method, by default FFGB-distill, then another one from that "
        "model",
        paper="Shen et al. 2022 (section 5)",
        trait="composes two methods",
        page="ffgb-distill",
        options=TwoMethods,
        table="warm-start",
        defaults={"clients-per-round": 0},
    ),
}

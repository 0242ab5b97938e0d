"""A few rounds of one method, then another."""

from dataclasses import dataclass

from algorithms.common.options import with_choices
from fedapps.methods.method import Method
from strategies import WarmStartOptions

# Methods that start from the task's torch model and send one like it to the clients: those that a warm start can compose.
COMPOSABLE = (
    "fedavg", "fedprox", "fedadam", "fedyogi", "fedadagrad", "aaggff-s", "aaggff-d", "afl", "q-fedavg", "term", "fedmgda", "propfair",
    "superfed-mm", "superfed-lm", "apfl", "pfedme", "ditto", "scaffold", "feddyn", "ffgb-distill", "fedavg-distill",
)  # fmt: skip


@dataclass(frozen=True)
class TwoMethods(WarmStartOptions):
    """A warm start's options, with names of methods."""

    first: str = with_choices(WarmStartOptions, "first", COMPOSABLE)
    then: str = with_choices(WarmStartOptions, "then", COMPOSABLE)


METHODS: dict[str, Method] = {
    "warm-start": Method(
        summary="a few rounds of one method, by default FFGB-distill, then another one from that model",
        paper="Shen et al. 2022 (section 5)",
        trait="composes two methods",
        page="ffgb-distill",
        options=TwoMethods,
        table="warm-start",
        defaults={"clients-per-round": 0},
    ),
}

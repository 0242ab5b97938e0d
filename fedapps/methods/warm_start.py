"""Warm start: a few rounds of one method, then another method."""

from dataclasses import dataclass

from fedapps.algorithms.common.options import with_choices
from fedapps.methods import averaging, distilled, fair, personal
from fedapps.methods.method import Method, TorchClient
from fedapps.strategies import Local, WarmStartOptions
from fedapps.strategies.families.shared_part import SharedPart


def composable(method: Method) -> bool:
    """Return whether a warm start can use the method: it must start from the task's
    torch model and send whole models to the clients.
    """
    if method.wrap is not None:
        return True
    kind = method.builds
    return (
        isinstance(method.client, TorchClient)
        and kind is not None
        and not issubclass(kind, SharedPart | Local)
    )


COMPOSABLE = tuple(
    name
    for kinds in (averaging, fair, personal, distilled)
    for name, method in kinds.METHODS.items()
    if composable(method)
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

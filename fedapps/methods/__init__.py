"""Table of all methods by name: strategy, client, options and tasks. To add a method,
add an entry (see CONTRIBUTING.md).

A user's own method is an entry in the user's module. Settings name it as
``module:name``, or by the name that an installed package registers for it.
"""

from dataclasses import dataclass

from fedapps.algorithms.common.options import nearest, with_choices
from fedapps.errors import UserError, refuse_first
from fedapps.extensions.own_code import check_options, load
from fedapps.extensions.registered import reference_of, registered
from fedapps.methods import (
    averaging,
    boosting,
    constrained,
    distilled,
    ensembles,
    personal,
    synthetic,
)
from fedapps.methods.method import Method, TorchClient as TorchClient
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
    for kinds in (averaging, personal, distilled)
    for name, method in kinds.METHODS.items()
    if composable(method)
)


@dataclass(frozen=True)
class TwoMethods(WarmStartOptions):
    """Options of a warm start, restricted to the names of composable methods."""

    first: str = with_choices(WarmStartOptions, "first", COMPOSABLE)
    then: str = with_choices(WarmStartOptions, "then", COMPOSABLE)


METHODS: dict[str, Method] = {
    **averaging.METHODS,
    **personal.METHODS,
    **ensembles.METHODS,
    **boosting.METHODS,
    **constrained.METHODS,
    **distilled.METHODS,
    **synthetic.METHODS,
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


def find_method(name: object, key: str = "method") -> Method:
    """Return the method of this name, which is the value of the setting ``key``. For an
    unknown name, raises ``UserError`` with the most similar one.
    """
    if name in METHODS:
        return METHODS[str(name)]
    if reference := reference_of("method", name):
        return checked_method(key, str(name), load(key, reference, str(name)))
    known = [*METHODS, *registered("method")]
    raise UserError(
        f"{key} = {name!r}: {nearest(str(name), known)}`fedapps methods` lists all {len(known)}"
    )


def checked_method(key: str, name: str, entry: object) -> Method:
    """Return ``entry``, the object that ``name`` stands for. Raises ``UserError`` if it
    is not a complete method.
    """
    if not isinstance(entry, Method):
        what = (
            f"the class {entry.__name__}"
            if isinstance(entry, type)
            else f"of type {type(entry).__name__}"
        )
        raise UserError(
            f"{key} = {name!r}: is {what}, not a fedapps.methods.Method: write METHOD = "
            "Method(summary=..., strategy=..., client=...)"
        )
    setting, wraps = f"{key} = {name!r}", entry.wrap is not None
    missing = "strategy" if entry.strategy is None else "client" if entry.client is None else ""
    refuse_first(
        (
            missing and not wraps,
            f"{setting}: has no {missing}: give it a strategy and a client, or let it wrap another "
            "method (wrap)",
        ),
        (
            wraps and not hasattr(entry.options, "base"),
            f"{setting}: wraps a method, so its options need a field 'base' with the method's name",
        ),
        (
            entry.loss is not None and not wraps,
            f"{setting}: has a loss for another method's clients, but wraps no method: add wrap",
        ),
        (not entry.tasks, f"{setting}: tasks = (): name the tasks that it runs on"),
    )
    check_options(key, name, entry.options, entry.table)
    return entry


def registered_methods() -> tuple[dict[str, Method], list[str]]:
    """Return the methods that installed packages register, by name, and one warning for
    each that cannot be used.
    """
    methods, warnings = {}, []
    for name, entry in registered("method").items():
        if name in METHODS:
            warnings.append(
                f"{entry.package} registers a method {name!r}, which is ignored: fedapps has a "
                "method of this name"
            )
            continue
        try:
            methods[name] = find_method(name)
        except UserError as error:
            warnings.append(f"{entry.package}: {error}")
    return methods, warnings

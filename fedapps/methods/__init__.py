"""Table of all methods by name: strategy, client, options and tasks. To add a method,
add an entry (see CONTRIBUTING.md).

A method of the user's own is an entry in a module of theirs, named in settings as
``module:name``, or by the name that an installed package registers for it.
"""

from algorithms.common.checks import nearest
from fedapps.errors import UserError
from fedapps.extensions.own_code import check_options, load
from fedapps.extensions.registered import reference_of, registered
from fedapps.methods import (
    averaging,
    boosting,
    constrained,
    distilled,
    ensembles,
    fair,
    personal,
    synthetic,
    warm_start,
)
from fedapps.methods.method import Method
from fedapps.methods.method import TorchClient as TorchClient

METHODS: dict[str, Method] = {
    **averaging.METHODS,
    **fair.METHODS,
    **personal.METHODS,
    **ensembles.METHODS,
    **boosting.METHODS,
    **constrained.METHODS,
    **distilled.METHODS,
    **synthetic.METHODS,
    **warm_start.METHODS,
}


def find_method(name: object, key: str = "method") -> Method:
    """Return the method of this name, the value of the setting ``key``. Raises
    ``UserError``, with the most similar name, if none.
    """
    if name in METHODS:
        return METHODS[str(name)]
    if reference := reference_of("method", name):
        return checked_method(key, str(name), load(key, reference, str(name)))
    known = [*METHODS, *registered("method")]
    raise UserError(
        f"{key} = {name!r}: {nearest(str(name), known)}'fedapps methods' lists all {len(known)}"
    )


def checked_method(key: str, name: str, found: object) -> Method:
    """Return ``found``, what ``name`` stands for. Raises ``UserError`` if it is no
    entry that could run.
    """
    if not isinstance(found, Method):
        what = (
            f"the class {found.__name__}"
            if isinstance(found, type)
            else f"a {type(found).__name__}"
        )
        raise UserError(
            f"{key} = {name!r}: is {what}, no fedapps.methods.Method: write METHOD = "
            "Method(summary=..., strategy=..., client=...)"
        )
    if found.wrap is None and (found.strategy is None or found.client is None):
        missing = "strategy" if found.strategy is None else "client"
        raise UserError(
            f"{key} = {name!r}: has no {missing}: a method has a strategy and a client, or wraps "
            "another one (wrap)"
        )
    if found.wrap is not None and not hasattr(found.options, "base"):
        raise UserError(
            f"{key} = {name!r}: wraps a method, but its options have no 'base' that names it"
        )
    if found.loss is not None and found.wrap is None:
        raise UserError(
            f"{key} = {name!r}: has a loss for another method's clients, but does not wrap one "
            "(wrap)"
        )
    if not found.tasks:
        raise UserError(f"{key} = {name!r}: tasks = (): name the tasks that it runs on")
    check_options(key, name, found.options, found.table)
    return found


def registered_methods() -> tuple[dict[str, Method], list[str]]:
    """Return the methods that installed packages register, by name, and a line for each
    that cannot be used.
    """
    found, warnings = {}, []
    for name, entry in registered("method").items():
        if name in METHODS:
            warnings.append(
                f"{entry.package} registers a method {name!r}: the name is one of ours, and stays "
                "ours"
            )
            continue
        try:
            found[name] = find_method(name)
        except UserError as error:
            warnings.append(f"{entry.package}: {error}")
    return found, warnings

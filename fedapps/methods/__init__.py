"""Table of all methods by name: strategy, client, options and tasks. To add a method, add an entry (see CONTRIBUTING.md)."""

from algorithms.common.checks import nearest
from fedapps.errors import UserError
from fedapps.methods import averaging, boosting, constrained, distilled, ensembles, fair, personal, synthetic, warm_start
from fedapps.methods.method import Method

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


def find_method(name: object) -> Method:
    """Return the method of this name. Raises ``UserError``, suggesting the most similar name, if there is none."""
    if name not in METHODS:
        raise UserError(f"method = {name!r}: {nearest(str(name), METHODS)}'fedapps methods' lists all {len(METHODS)}")
    return METHODS[str(name)]

"""A client's answer to a server that asks for the validation losses of its candidates;
server half: ``strategies/families/pooled_choice.py``.
"""

from collections.abc import Callable, Iterable
from typing import Any

from fedapps.clients.base.data import ClientData, Split

#: The loss of a candidate that has diverged.
WORST = 1e9


def answer(
    data: ClientData, losses: Callable[[Split], Iterable[float]]
) -> tuple[float, int, dict[str, Any]]:
    """Return the reply: the mean ``losses`` of the candidates on validation samples,
    which are not computed if there are none.
    """
    own = data.validation
    if own is data.train or not len(own):
        return 0.0, 1, {"candidate-losses": [], "validation-samples": 0}
    curve = [loss if loss < WORST else WORST for loss in losses(own)]
    return min(curve), len(own), {"candidate-losses": curve, "validation-samples": len(own)}

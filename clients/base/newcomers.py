"""A client that takes no part in training, scored as it is and after some local epochs;
server half: ``strategies/base/newcomers.py``.

Every score starts with a client without state; the state and replies of this client are
discarded. Measures are called ``new-NAME`` if the client has not trained,
``new-NAME-E`` after E local epochs of the method's own training.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import RecordDict

from fedapps.algorithms.common.averaging import Arrays
from fedapps.clients.base.options import Config
from fedapps.clients.base.store import MessageStore

#: Measures that are reported, if the task has them.
MEASURES = ("accuracy", "loss", "ece", "auroc", "rmse", "mae", "r2", "concordance")


def newcomer_metrics(
    client: Any,
    evaluated: tuple[Arrays, Config],
    trained: tuple[Arrays, Config],
    epochs: Sequence[int],
) -> tuple[int, Mapping[str, float]]:
    """Return the number of test samples and the measures of a new client; ``client`` is
    left without state.

    A client that can be scored as a new one has a ``store`` and ``evaluate_new``, as
    ``clients.base.scored_net.ScoredNet``; else raises ``TypeError``. ``evaluated``,
    ``trained``: the messages for each.
    """
    if not (hasattr(client, "store") and hasattr(client, "evaluate_new")):
        raise TypeError(
            f"{type(client).__name__} has no evaluate_new: it cannot be scored as a new client"
        )
    measures: dict[str, float] = {}
    number = 0
    for done in dict.fromkeys([0, *epochs]):
        client.store = MessageStore(RecordDict())
        _, number, metrics = client.evaluate_new(done, *evaluated, *trained)
        measures |= {
            f"new-{name}{f'-{done}' if done else ''}": metrics[name]
            for name in MEASURES
            if name in metrics
        }
    client.store = MessageStore(RecordDict())
    return number, measures

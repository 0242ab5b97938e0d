"""A client that takes no part in training, scored as it is and after some local epochs;
server half: ``strategies/base/newcomers.py``.

Every score starts with a client without state; the state and replies of this client are
discarded. Measures are called ``new-NAME`` if the client has not trained,
``new-NAME-E`` after E local epochs of the method's own training.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from flwr.app import RecordDict

from fedapps.algorithms.common.averaging import Arrays
from fedapps.clients.base.options import Config
from fedapps.clients.base.store import MessageStore, Store

#: Measures that are reported, if the task has them.
MEASURES = ("accuracy", "loss", "ece", "auroc", "rmse", "mae", "r2", "concordance")


@runtime_checkable
class Meeting(Protocol):
    """A client that can be scored as a new one; ``store`` holds its state between
    rounds.
    """

    store: Store

    def evaluate_new(
        self,
        epochs: int,
        parameters: Arrays,
        config: Config,
        train_parameters: Arrays,
        train_config: Config,
    ) -> tuple[float, int, dict[str, Any]]:
        """Return the result of ``evaluate`` after the client has trained alone for this
        many local epochs (0: none).
        """


def newcomer_metrics(
    client: object,
    evaluated: tuple[Arrays, Config],
    trained: tuple[Arrays, Config],
    epochs: Sequence[int],
) -> tuple[int, Mapping[str, float]]:
    """Return the number of test samples and the measures of a new client; ``client`` is
    left without state.

    ``evaluated``, ``trained``: the messages for each. Raises ``TypeError`` if the
    client cannot be scored as a new one.
    """
    if not isinstance(client, Meeting):
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

"""A Grid of sites with many clients each, such as a gateway of devices or a hospital
with wards.

Every site is asked once for its clients. From then on they are clients like others,
with their own ids, samples, failures and states. In each phase, one message goes to all
clients of a site (``node_grid``). Unlike in a simulation, clients and their states stay
at the site.
"""

from collections.abc import Iterable, Sequence
from logging import ERROR, WARNING

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common import log
from flwr.serverapp import Grid

from fedapps.engines.node_app import CLIENTS
from fedapps.engines.node_grid import MOST_BYTES, NodeGrid
from fedapps.strategies.base.messages import trains
from fedapps.strategies.base.roster import Numbered

PATIENCE = 300.0  # seconds to wait for a site's clients: it may read its data first
MOST_CLIENTS = 100_000  # per site


class GatewayGrid(NodeGrid):
    """The clients behind the nodes of ``grid``, distinguished by their names."""

    def __init__(self, grid: Grid, most_bytes: int = MOST_BYTES) -> None:
        super().__init__(grid, 0, (), most_bytes)
        self._behind: dict[int, list[int]] = {}  # node -> virtual nodes, of its clients
        self._homes: dict[int, tuple[int, str]] = {}  # virtual node -> node, client
        self._begun = False

    def known_clients(self) -> Numbered | None:
        """Return ``None``: the clients send their ids, and whether they can take
        part.
        """
        return None

    def get_node_ids(self) -> Iterable[int]:
        """Return the virtual nodes of all connected nodes' clients, after asking new
        nodes.

        Raises ``ValueError`` if a node fails before the first round.
        """
        nodes = sorted(self.grid.get_node_ids())
        self._ask([node for node in nodes if node not in self._behind])
        return [virtual for node in nodes for virtual in self._behind.get(node, ())]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send clients' messages in packages to their sites and return the replies that
        arrive within ``timeout`` seconds.
        """
        asked = list(messages)
        self._begun = self._begun or any(trains(message) for message in asked)
        return super().send_and_receive(asked, timeout=timeout)

    def _ask(self, nodes: Sequence[int]) -> None:
        questions = [
            Message(RecordDict({"config": ConfigRecord()}), node, CLIENTS) for node in nodes
        ]
        answers = self.grid.send_and_receive(questions, timeout=PATIENCE) if questions else ()
        places = {
            question.metadata.message_id: question.metadata.dst_node_id for question in questions
        }
        for answer in answers:
            node = places[answer.metadata.reply_to_message_id]
            names, fault = _clients_of(answer)
            if fault:
                log(
                    ERROR if answer.has_content() else WARNING,
                    "A site did not send its list of clients: %s",
                    fault,
                )
                if not self._begun:  # do not start a run without an expected site
                    raise ValueError(f"a site did not send its list of clients: {fault}")
                continue  # it is asked again later: it may have been stopping
            # Flower's node ids are never negative
            self._behind[node] = [-1 - len(self._homes) - place for place in range(len(names))]
            self._homes |= {
                virtual: (node, name)
                for virtual, name in zip(self._behind[node], names, strict=True)
            }

    def _client(self, message: Message) -> str:
        return self._homes[message.metadata.dst_node_id][1]

    def _shares(self, messages: Sequence[Message]) -> Iterable[tuple[int, Sequence[int]]]:
        """Return the places of the messages for each site."""
        shares: dict[int, list[int]] = {}
        for place, message in enumerate(messages):
            shares.setdefault(self._homes[message.metadata.dst_node_id][0], []).append(place)
        return sorted(shares.items())


def _clients_of(answer: Message) -> tuple[list[str], str]:
    """Return the names of a site's clients, or the reason why there are none."""
    if answer.has_error():
        return [], (answer.error.reason or f"error code {answer.error.code}").strip().splitlines()[
            -1
        ][:300]
    try:
        record = answer.content.config_records["config"]
        names, fault = record.get("clients", []), record.get("fault", "")
    except Exception:  # untrusted input
        return [], "its answer cannot be read"
    if fault:
        return [], " ".join(str(fault).split())[:500]
    if (
        not isinstance(names, list)
        or not all(isinstance(name, str) for name in names)
        or len(set(names)) < len(names)
    ):
        return [], "its answer is not a list of different names"
    clients = [name for name in names if isinstance(name, str)]
    return (
        (clients, "")
        if 0 < len(clients) <= MOST_CLIENTS
        else ([], f"it has {len(clients)} clients: 1 to {MOST_CLIENTS:,} are allowed")
    )

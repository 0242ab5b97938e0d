"""Clients that get lost in secure sums: one in every round, each in another phase.

``with_losses()`` returns the app of this project with such clients; ``add_losses(app)``
changes a copy of it (``fedapps.engines.app_folder.copy_app``), for Ray and SuperNodes.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from algorithms.secure.wire import RECORD, unpacked
from clients.base.adapter import client_id

#: Where one is lost in session 0, 1, 2, ...: before it masks; before it has made its
#: shares; after it has masked; in unmasking. Rounds are sessions 1, 3, 4, 5, 7, ...:
#: where a reply is lost, the session that it should have prepared is given up.
PHASES = ("before", "offer", "after", "sign", "reveal")
#: The file in the run's folder with a line for each loss: session, phase, client.
LOSSES = "losses.jsonl"


def usual(phase: str, session: int, client: int, count: int) -> bool:
    """Return whether a client of ``count`` is lost in a phase of a session."""
    return phase == PHASES[session % len(PHASES)] and client == session % count


class Dropping(ClientApp):
    """``app``, which gives no answer where ``lost(phase, session, client, clients)``.
    Without secure sums the session is the round.
    """

    def __init__(self, app: ClientApp, lost: Callable[[str, int, int, int], bool] = usual) -> None:
        super().__init__()
        self.app, self.lost = app, lost

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message, or raise ``RuntimeError``."""
        metadata, content = message.metadata, message.content
        asked = unpacked(content[RECORD]) if RECORD in content else {}
        train = metadata.message_type.startswith("train")
        if not train and "session" not in asked:
            return self.app(message, context)
        number = asked["session"]["number"] if asked else int(metadata.group_id)
        phases = ("before", "after") if train else (asked["step"],)
        reply = None
        for phase in phases:
            reply = self.app(message, context) if phase == "after" else reply
            self._check(phase, number, context)
        return reply or self.app(message, context)

    def _check(self, phase: str, session: int, context: Context) -> None:
        client, config = int(str(client_id(context))), context.run_config
        if self.lost(phase, session, client, int(str(config["num-clients"]))):
            if config.get("out"):
                with Path(str(config["out"]), LOSSES).open("a") as file:
                    file.write(json.dumps([session, phase, client]) + "\n")
            raise RuntimeError(f"client {client} is lost: phase {phase} of session {session}")


def with_losses(lost: Callable[[str, int, int, int], bool] = usual) -> ClientApp:
    """Return the app that runs for every client, with losses."""
    from fedapps.engines.node_app import answer_for_many
    from fedapps.runs.client_app import clients, trained
    from fedapps.runs.guarded_app import Guarded

    return answer_for_many(Guarded(Dropping(trained, lost)), clients)


def add_losses(app: Path) -> Path:
    """Add losses to a copy of the app, and return it."""
    shutil.copy(__file__, app / "fedapps" / "runs" / "dropping_clients.py")
    path = app / "fedapps" / "runs" / "client_app.py"
    text = path.read_text()
    line = "app = answer_for_many("
    assert line in text
    added = "from fedapps.runs.dropping_clients import with_losses\n\napp = with_losses()\n"
    path.write_text(text[: text.index(line)] + added)
    return app

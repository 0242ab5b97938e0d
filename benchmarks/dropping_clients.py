"""Clients that get lost in secure sums: one in every round, each in another phase.

    python benchmarks/dropping_clients.py [method=scaffold] [num-rounds=5] [...]

runs seven clients with secure sums, then without them, the same clients being lost from
the sums, and prints both round by round.

``with_losses()`` returns the app of this project with such clients; ``add_losses(app)``
changes a copy of it (``fedapps.engines.app_folder.copy_app``), for Ray and SuperNodes.
"""

import contextlib
import io
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedapps.algorithms.secure.wire import RECORD, unpacked
from fedapps.clients.base.adapter import client_id

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


def away(members: list[list[int]]) -> Callable[[str, int, int, int], bool]:
    """Return the losses of a plain run whose rounds have these members."""
    return lambda _, number, client, __: client not in members[number - 1]


def lines(path: Path) -> list[Any]:
    """Return what the lines of a file hold."""
    return [json.loads(line) for line in path.read_text().splitlines()]


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


def main() -> None:
    """Print a secure and a plain run, round by round."""
    from safetensors.numpy import load_file

    from fedapps.commands.parser import main as command
    from fedapps.runs import inline_grid

    job = ["run", "method=scaffold", "num-rounds=5", "num-clients=7", "clients-per-round=0"]
    job += ["seed=3", "evaluate-every=1", "checkpoint-every=0", *sys.argv[1:]]
    members: list[list[int]] = []
    with tempfile.TemporaryDirectory() as folder:
        rows, models = [], []
        for name in ("secure", "plain"):
            secure = name == "secure"
            app = with_losses() if secure else with_losses(away(members))
            inline_grid.load_app = lambda app=app: app
            out = Path(folder, name)
            words = [*job, f"secure.on={str(secure).lower()}", "--engine", "inline"]
            with contextlib.redirect_stdout(io.StringIO()):
                command([*words, "--workers", "1", "--out", str(out)])
            rows.append(lines(out / "rounds.jsonl"))
            models.append(load_file(out / "model.safetensors"))
            members = [row["clients"] for row in rows[0]]
        losses = lines(Path(folder, "secure", LOSSES))
    print("round  lost (phase)   in the sum  loss, plain    secure  accuracy, plain  secure")
    for one, other, (_, phase, client) in zip(*rows, losses, strict=True):
        shown = [row["train"]["loss"] for row in (other, one)]
        scores = [100 * row["evaluate"]["accuracy-mean"] for row in (other, one)]
        print(
            f"{one['round']:5}  {client} ({phase})".ljust(22),
            f"{len(one['clients']):10}  {shown[0]:11.6f}  {shown[1]:8.6f}",
            f"{scores[0]:15.1f} %  {scores[1]:.1f} %",
        )
    apart = max(float(np.abs(models[0][k] - models[1][k]).max()) for k in models[0])
    sent = [sum(row.get("travelled-up", row["bytes-up"]) for row in run) for run in rows]
    print(f"largest difference of a number of the model: {apart:.1e}")
    print(f"bytes up, of the plain run's: {sent[0] / sent[1]:.2f} times")


if __name__ == "__main__":
    main()

"""SuperNodes as in Flower's quickstart, without a key of their own: one that dies comes
back, and only its own rounds are lost.
"""

import json
import time

import pytest

from fedapps.deployment.local import Deployment
from tests.end_to_end.sites import succeed
from tests.helpers import rounds_of

pytestmark = [pytest.mark.deployment, pytest.mark.timeout(900)]

PHASES = ("train", "evaluate", "between")
FILES = {
    "pyproject.toml": """
        [project]
        name = "plain"
        version = "1.0.0"
        dependencies = []
        [tool.flwr.app]
        publisher = "you"
        [tool.flwr.app.components]
        serverapp = "plain_app.server:app"
        clientapp = "plain_app.client:app"
        [tool.flwr.app.config]
        folder = ""
        """,
    "plain_app/server.py": """
        import json, time
        from pathlib import Path
        import numpy as np
        from flwr.app import Array, ArrayRecord
        from flwr.serverapp import ServerApp
        from fedapps.strategies import ClientGrid, FedAvg

        app = ServerApp()

        @app.main()
        def main(grid, context):
            folder = Path(context.run_config["folder"])

            def report(now):
                row = [now.number, now.trained.clients, now.evaluated.clients]
                with (folder / "rounds.jsonl").open("a") as file:
                    file.write(json.dumps(row) + chr(10))
                (folder / "now").write_text(f"between {now.number}")
                time.sleep(2)
                return (folder / "stop").exists()

            start = ArrayRecord({"w": Array(np.zeros(2))})
            FedAvg().start(ClientGrid(grid, num_clients=3), start, 1000, callbacks=[report])
        """,
    "plain_app/client.py": """
        import time
        from pathlib import Path
        from flwr.client import NumPyClient
        from fedapps.clients import to_client_app

        class Client(NumPyClient):
            def __init__(self, context):
                self.me = context.node_config["partition-id"]
                self.folder = Path(context.run_config["folder"])

            def during(self, phase, number):
                if self.me == 1:
                    (self.folder / "now").write_text(f"{phase} {number}")
                    time.sleep(1)

            def fit(self, parameters, config):
                self.during("train", config["server-round"])
                return [parameters[0] + 1], 1, {}

            def evaluate(self, parameters, config):
                self.during("evaluate", config["server-round"])
                return 0.0, 1, {}

        app = to_client_app(lambda context: Client(context).to_client())
        """,
}


def rounds_with_kills(folder, phases):
    """Run three SuperNodes; kill that of client 1 in each of ``phases`` and start it
    again. Return the rounds as (number, trained, evaluated), and when it was killed.
    """
    for name, text in FILES.items():
        path = folder / "plain" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(line[8:] for line in text.splitlines()[1:]))
    out, kills = folder / "out", []
    out.mkdir()
    sites = {f"s{i}": {"partition-id": i, "num-partitions": 3} for i in range(3)}
    with Deployment.create(folder / "deployment", sites) as deployment:
        # with certificates, but any SuperNode may connect
        deployment.superlink.command.remove("--enable-supernode-auth")
        for site in deployment.sites.values():
            place = site.command.index("--auth-supernode-private-key")
            del site.command[place : place + 2]
            (site.folder / "registered").touch()
        deployment.start()
        to = ["--dir", deployment.folder]
        given = f"folder={json.dumps(str(out))}"
        succeed("deploy", "flwr", *to, "run", folder / "plain", "own", "--run-config", given)

        def wait(condition):
            deadline = time.monotonic() + 240
            while not condition():
                assert time.monotonic() < deadline, deployment.superlink.words()[-3000:]
                time.sleep(0.05)

        def whole():
            """Return the rounds in which all clients trained and were scored."""
            return [row for row in rounds_of(out) if row[1] == row[2] == [0, 1, 2]]

        for phase in phases:
            before = len(whole())
            wait(lambda before=before: len(whole()) > before)
            wait(lambda phase=phase: (out / "now").read_text().startswith(phase))
            kills.append((out / "now").read_text())
            deployment.sites["s1"].kill()
            deployment.sites["s1"].start()
        before = len(whole())
        wait(lambda: len(whole()) > before + 1)
        (out / "stop").touch()
    return rounds_of(out), kills


def test_a_supernode_that_died_comes_back(tmp_path):
    """The others took part in every round, and client 1 in all but one round for each
    time it was killed.
    """
    rows, kills = rounds_with_kills(tmp_path, PHASES)
    assert [row[0] for row in rows] == list(range(1, len(rows) + 1))
    assert all({0, 2} <= set(phase) for row in rows for phase in row[1:])
    lost = [row[0] for row in rows if row[1:] != [[0, 1, 2]] * 2]
    assert len(lost) <= len(kills), (lost, kills)
    assert rows[-1][1:] == [[0, 1, 2]] * 2

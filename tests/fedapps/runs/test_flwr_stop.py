"""`flwr stop` ends a run without waiting for it: its record is closed."""

import json
import threading

import pytest
from flwr.app import Context, RecordDict
from flwr.supercore.exit.exit_handler import trigger_exit_handlers
from safetensors.numpy import load_file

from fedapps import server_app
from fedapps.engines.inline import InlineGrid
from fedapps.records.lock import FolderLost
from fedapps.runs.client_app import app
from fedapps.settings.reading import read_settings
from fedapps.strategies.base.flower_private import identify_process
from tests.helpers import rounds_of

GIVEN = {"num-clients": 3, "num-rounds": 200, "clients-per-round": 0, "checkpoint-every": 2}


class Hanging(InlineGrid):
    """Waits in round 6 until it may ``go``."""

    def push_messages(self, messages):
        listed = list(messages)
        if any(m.content["config"].get("server-round") == 6 for m in listed):
            self.reached.set()
            self.go.wait(60)
            raise KeyboardInterrupt  # the process has ended
        return super().push_messages(listed)


@pytest.mark.parametrize("out", ["given", ""])
def test_a_stopped_run_is_closed_and_has_its_state(out, tmp_path, monkeypatch):
    monkeypatch.setattr("pathlib.Path.home", lambda: tmp_path)
    folder = tmp_path / (out or "fedapps-results/7")
    config = read_settings(GIVEN | {"out": str(folder) if out else ""}).flat()
    grid = Hanging(app, 3, config)
    grid.reached, grid.go = threading.Event(), threading.Event()
    identify_process(7)
    context = Context(7, 1, {}, RecordDict(), config)

    def run():
        with pytest.raises((KeyboardInterrupt, FolderLost)):
            server_app.run(grid, context)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert grid.reached.wait(120)
        trigger_exit_handlers(run_before_force_exit=False)
        assert json.loads((folder / "summary.json").read_text())["status"] == "interrupted"
        assert load_file(folder / "model.safetensors")
        assert (folder / "report.html").exists()
        assert not (folder / "run.lock").exists()
        assert (folder / "checkpoint" / "4").is_dir()
        assert len(rounds_of(folder)) == 5
    finally:
        grid.go.set()
        thread.join()

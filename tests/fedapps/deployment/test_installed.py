"""The stand-in for Flower's client program, which runs the site's own app."""

import subprocess
from importlib import import_module

from fedapps.deployment.installed import NAME, make_installed
from fedapps.runs import installed_app
from fedapps.runs.client_app import app
from fedapps.strategies.base.flower_private import CLIENT_LOADER, CLIENT_PROGRAM


def test_a_site_answers_with_its_own_app_whatever_a_run_brings(tmp_path, monkeypatch):
    """As Flower's program does it: it loads the app of the run, then calls it."""
    loader, program = (
        import_module(name) for name in (CLIENT_LOADER, CLIENT_PROGRAM.split(":")[0])
    )
    called = []

    def run():
        load = loader.get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
        called.append(load("evil/app", "1.0", "0123"))

    monkeypatch.setattr(loader, "get_load_client_app_fn", None)  # and restored
    monkeypatch.setattr(program, "flwr_clientapp", run)
    installed_app.main()
    assert called == [app]
    script = make_installed(tmp_path / "own") / NAME
    assert installed_app.__name__ in script.read_text()
    assert script.stat().st_mode & 0o777 == 0o700


def test_the_stand_in_is_flower_s_program(tmp_path):
    """It is asked for its help, and for what it does not know."""
    script = make_installed(tmp_path / "own") / NAME
    done = subprocess.run([script, "--help"], capture_output=True, text=True, timeout=60)
    assert "Run a Flower ClientApp" in done.stdout
    assert subprocess.run([script, "--no-such"], capture_output=True, timeout=60).returncode == 2

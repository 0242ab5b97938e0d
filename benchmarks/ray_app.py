"""Runs the two halves of an app of a benchmark in Flower's Ray simulation."""

import tempfile
from pathlib import Path
from typing import Any

from fedapps.engines import flower
from fedapps.toml_text import to_toml

PROJECT = """[project]
name = "benchmark"
version = "0.1.0"
description = "x"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "benchmarks"
[tool.flwr.app.components]
serverapp = "benchmarkapp.apps:server"
clientapp = "benchmarkapp.apps:client"
[tool.flwr.app.config]
"""


def run_app(apps: str, config: dict[str, Any], nodes: int, workers: int, log: Path) -> None:
    """Run the apps ``server`` and ``client``, which the code ``apps`` assigns, with
    ``nodes`` nodes and ``workers`` processes. Raise ``SystemExit`` with the end of the
    log if the run does not complete.
    """
    root = str(Path(__file__).resolve().parent.parent)
    with tempfile.TemporaryDirectory(prefix="fedapps-benchmark-") as name:
        app = Path(name) / "benchmarkapp"
        app.mkdir()
        (app / "__init__.py").touch()
        (app / "apps.py").write_text(apps, encoding="utf-8")
        (Path(name) / "pyproject.toml").write_text(PROJECT + to_toml(config), encoding="utf-8")
        outcome = flower.run_simulation(
            Path(name),
            config,
            flower.Resources(nodes, ray_cpus=workers),
            flower.Following(log),
            env={"PYTHONPATH": root},
        )
    if outcome.status != "completed":
        raise SystemExit(
            f"the Ray run {outcome.status}: {outcome.details}\n{log.read_text()[-3000:]}"
        )

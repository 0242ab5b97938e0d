"""A run of this project's app on the SuperNodes of a deployment."""

import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from fedapps.deployment.local import Deployment
from fedapps.engines.app_folder import copy_app
from fedapps.engines.flower import Following, Outcome, SubmittedRun
from fedapps.extensions.own_code import own_files
from fedapps.toml_text import Value


def run_on_deployment(
    sites: Path, run_config: Mapping[str, Value], following: Following
) -> Outcome:
    """Run this project's app on the SuperNodes of the deployment in the folder
    ``sites`` and wait for it to end; the deployment keeps running.

    Ctrl-C and the outcome are as in `run_simulation`. Raises UserError if the
    SuperLink cannot be reached or a site is not running.
    """
    deployment = Deployment.open(sites)
    deployment.check()
    following.log_path.parent.mkdir(parents=True, exist_ok=True)
    with (
        closing(deployment.connection(following.poll)) as connection,
        tempfile.TemporaryDirectory(prefix="app-", dir=connection.base) as folder,
    ):
        return SubmittedRun(connection, following).execute(
            lambda: copy_app(Path(folder) / "app", own_files(run_config), run_config), run_config
        )


def stop_run(folder: Path, run_id: str) -> bool:
    """Ask the SuperLink of the deployment in ``folder`` to stop a run; return whether
    it has one of this id that goes on. Raises ``UserError`` without a deployment.
    """
    with closing(Deployment.open(folder).connection()) as connection:
        runs = connection.ask("list", "own", "--run-id", run_id).get("runs") or [{}]
        going = not str(runs[0].get("status", "finished")).startswith("finished")
        if going:
            connection.stop_run(run_id)
        return going

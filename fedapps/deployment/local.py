"""A deployment on this machine: a SuperLink and one SuperNode per site, as processes on
the loopback interface, in one folder.

    sites = {"a": {"partition-id": 0, "num-partitions": 1}}
    with Deployment.create(folder, sites) as deployment:
        deployment.start()  # TLS, node authentication, new certificates, keys
        deployment.sites["a"].kill()
        deployment.sites["a"].start()

The folder holds everything: `certificates/`, `superlink/` (database, log, Flower's home
with the connection `own`), and `sites/NAME/` with the key, log, Flower home, data and
store of each site, as on a separate machine. The programs continue after the process
that starts them has ended; another process finds them by the folder
(`Deployment.open`).

:func:`run_on_deployment` runs this project's app on its SuperNodes.
"""

import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Self

from fedapps.deployment.certificates import (
    CA,
    CA_KEY,
    SERVER,
    SERVER_KEY,
    check_connection,
    ended,
    ends,
    make_certificates,
    make_site_key,
    private_folder,
    warnings,
)
from fedapps.deployment.warm import make_warm
from fedapps.engines.app_folder import copy_app
from fedapps.engines.flower import Following, Outcome, SubmittedRun
from fedapps.engines.processes import Guard, answers, checked_port, free_port, program
from fedapps.engines.superlink import (
    START_SECONDS,
    Connection,
    Program,
    end_programs,
    environment_of,
    one_line,
    reason_of,
)
from fedapps.errors import RunFailed, UserError, refuse_first
from fedapps.extensions.own_code import own_files
from fedapps.strategies.base.flower_private import CUT_OFF, NOT_ACTIVATED, ONLINE
from fedapps.toml_text import Value, toml_value

HOST = "127.0.0.1"
HOSTS = [HOST, "localhost"]
FACTS = "deployment.json"
RETRY_SECONDS = 3.0
LOG_END = 1 << 16  # bytes; the whole log may cover months


def environment(folder: Path, deployment: Path) -> dict[str, str]:
    """Return the environment of a program of a deployment, with a Flower home in its
    folder; make its folders.
    """
    for name in ("home", "cwd"):
        private_folder(folder / name)
    # each poll costs a site 2 ms, even without a run
    more = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5", "FEDAPPS_DEPLOYMENT": str(deployment)}
    given = environment_of(folder / "home") | more
    # otherwise a site would compile the app's Python files for every message
    given.pop("PYTHONDONTWRITEBYTECODE", None)
    return given


class Site(Program):
    """A SuperNode; `config` is its node configuration."""

    def __init__(
        self, deployment: "Deployment", name: str, config: Mapping[str, Value], port: int
    ) -> None:
        self.name, self.config, self.deployment = name, dict(config), deployment
        folder = deployment.folder / "sites" / name
        command = [
            str(program("flower-supernode")),
            "--superlink",
            f"{HOST}:{deployment.port}",
            "--port",
            str(port),
            "--root-certificates",
            str(folder / CA),
            "--auth-supernode-private-key",
            str(folder / "key"),
            "--node-config",
            " ".join(f"{key}={toml_value(value)}" for key, value in config.items()),
        ]
        super().__init__(folder, command, environment(folder, deployment.folder))
        if deployment.warm:
            self.environment["PATH"] = (
                f"{make_warm(folder / 'warm')}{os.pathsep}{self.environment['PATH']}"
            )
        self.begin = 0

    def launch(self) -> int:
        """Start the SuperNode without waiting for it."""
        self.begin = super().launch()
        return self.begin

    def serves(self) -> bool:
        """Return whether the SuperNode is running and tries to stay connected. After it
        refused the SuperLink's certificate it can run for ever without trying.
        """
        if not self.alive():
            return False
        words = self.words(max(self.size() - LOG_END, 0))  # it then says little more
        last = max((found.start() for found in ONLINE.finditer(words)), default=0)
        return CUT_OFF not in words[last:]

    def start(self) -> None:
        """Start the SuperNode and wait until it is connected. Raises UserError or
        RunFailed with the reason if that fails.
        """
        self.deployment.check_connection(self.folder / CA)
        self.launch()
        self.wait()

    def wait(self) -> None:
        """Wait until the SuperNode is connected.

        After a SIGKILL, the SuperLink considers the old SuperNode connected for another
        minute, and refuses the new one until then. It refuses a removed key for good.
        """
        deadline = time.monotonic() + START_SECONDS
        asked = False
        while not (node_ids := ONLINE.findall(words := self.words(self.begin))):
            if not self.alive():
                refused = f"the SuperLink refused site {self.name!r}: {reason_of(words)}"
                if NOT_ACTIVATED in words and not (self.folder / "registered").exists():
                    raise RunFailed(
                        f"{refused}; register its key with `flwr supernode register "
                        f"{self.folder / 'key.pub'} own`"
                    )
                if NOT_ACTIVATED not in words or time.monotonic() > deadline:
                    raise RunFailed(refused)
                if not asked and self.removed():
                    raise RunFailed(
                        f"{refused}; its key was removed there and cannot return: delete key, "
                        f"key.pub and registered in {self.folder}, make another key with `fedapps "
                        f"deploy key {self.folder / 'key'}`, and start again"
                    )
                asked = True
                time.sleep(RETRY_SECONDS)
                self.kill()  # its child processes may still be running
                self.launch()
            if time.monotonic() > deadline:
                raise RunFailed(
                    f"site {self.name!r} did not connect within {START_SECONDS:.0f} s; see "
                    f"{self.log}"
                )
            time.sleep(0.1)
        self.node_id = node_ids[-1]
        (self.folder / "node-id").write_text(self.node_id)

    def removed(self) -> bool:
        """Return whether the site's key was removed from the SuperLink (`flwr supernode
        unregister`).
        """
        mine = [row for row in self.deployment.status() if row["site"] == self.name]
        return any(row["superlink"] == "unregistered" for row in mine)


class Deployment:
    """A SuperLink and its sites; see the module docstring. Use `create` or `open` to
    get one.
    """

    def __init__(self, folder: Path, facts: Mapping[str, Any]) -> None:
        self.folder, self.port = folder, int(facts["port"])
        self.certificates, link = folder / "certificates", folder / "superlink"
        options = {
            "host": HOST,
            "port": self.port,
            "database": link / "state.db",
            "ssl-ca-certfile": self.certificates / CA,
            "ssl-certfile": self.certificates / SERVER,
            "ssl-keyfile": self.certificates / SERVER_KEY,
        }
        command = [
            str(program("flower-superlink")),
            "--disable-runtime-dependency-installation",
            "--enable-supernode-auth",
            *(word for key, value in options.items() for word in (f"--{key}", str(value))),
        ]
        self.superlink = Program(link, command, environment(link, folder))
        self.mark = f"FEDAPPS_DEPLOYMENT={folder}"
        self.warm = bool(facts.get("warm"))
        self.sites = {
            name: Site(self, name, one["config"], one["port"])
            for name, one in facts["sites"].items()
        }
        self.guard: Guard | None = None

    @classmethod
    def create(
        cls,
        folder: Path,
        sites: Mapping[str, Mapping[str, Value]],
        port: int | None = None,
        warm: bool = False,
    ) -> Self:
        """Create the folder of a deployment, with certificates and keys, without
        starting anything.

        sites: node configurations by site name; a `store-dir` in the site's folder is
        added. port: the SuperLink's port; None: a free one. warm: sites keep a process
        from which their clients are forked (`warm_process.py`).
        """
        folder = folder.expanduser().absolute()
        refuse_first(
            (
                (folder / FACTS).exists() or (folder.exists() and any(folder.iterdir())),
                f"{folder} is not empty: remove the deployment with `fedapps deploy down --dir "
                f"{folder}`, or choose another --dir",
            ),
            (
                not sites,
                "a deployment needs at least one site: add --nodes 3, or --site NAME=FOLDER",
            ),
        )
        for name in sites:
            if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
                raise UserError(
                    f"site {name!r}: choose a name of letters, digits, '.', '-' and '_' that "
                    "begins with a letter or digit"
                )
        chosen = free_port() if port is None else checked_port(port)
        private_folder(folder).chmod(0o700)
        facts: dict[str, Any] = {"port": chosen, "warm": warm, "sites": {}}
        taken = {chosen}
        for name, config in sites.items():
            site = private_folder(folder / "sites" / name)
            private_folder(site / "store")
            while (runtime := free_port()) in taken:
                pass
            taken.add(runtime)
            # the user of a deployment on one machine may read all errors
            (policy := site / "policy.toml").write_text("errors = true\n", encoding="utf-8")
            facts["sites"][name] = {
                "config": {"store-dir": str(site / "store"), "policy": str(policy), **config},
                "port": runtime,
            }
        make_certificates(folder / "certificates", HOSTS)
        for name in sites:
            make_site_key(folder / "sites" / name / "key")
            shutil.copy(folder / "certificates" / CA, folder / "sites" / name)
        made = cls(folder, facts)
        (made.home / "config.toml").write_text(
            '[superlink]\ndefault = "own"\n\n[superlink.own]\naddress = '
            f'"{HOST}:{chosen}"\nroot-certificates = {toml_value(str(made.authority))}\n'
        )
        (folder / FACTS).write_text(json.dumps(facts, indent=1) + "\n")
        return made

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Return the deployment in a folder, running or not. Raises UserError if there
        is none.
        """
        folder = folder.expanduser().absolute()
        try:
            return cls(folder, json.loads((folder / FACTS).read_text()))
        except FileNotFoundError:
            raise UserError(
                f"{folder} has no deployment: make one with `fedapps deploy up --dir {folder}`"
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{folder / FACTS}: cannot be read ({error}): delete the folder and make a new one"
            ) from None

    @property
    def home(self) -> Path:
        """Flower's home with the connection `own`: `FLWR_HOME=... flwr run . own`."""
        return self.superlink.folder / "home"

    @property
    def authority(self) -> Path:
        """The CA certificate that the sites trust."""
        return self.certificates / CA

    # --- start and end ----------------------------------------------------------------

    def start(self) -> None:
        """Start all programs that are not running, and the sites that no longer try to
        connect; register the sites' keys, and wait until all sites are connected.
        """
        self.start_superlink()
        self.register()
        waiting = [site for site in self.sites.values() if not site.serves()]
        end_programs(waiting)
        for site in waiting:
            site.launch()
        for site in waiting:
            site.wait()

    def start_superlink(self) -> None:
        """Start the SuperLink if it is not running, and wait until it answers. Raises
        UserError if its certificate has ended and cannot be renewed.
        """
        if self.superlink.alive():
            return
        if self.warnings() and (self.certificates / CA_KEY).exists():
            # renew the certificate, signed by the authority that the sites know
            make_certificates(self.certificates, HOSTS)
        if old := ended(self.certificates):
            raise UserError(
                f"{old[0]} has ended: copy {CA_KEY} back to {self.certificates} and repeat the "
                "command, which renews it"
            )
        with closing(self.connection()) as connection:  # its log begins here
            self.superlink.launch()
            failure = f"the SuperLink did not answer (its log: {self.superlink.log})"
            connection.wait(self.healthy, failure, connection.check_alive)

    def register(self) -> None:
        """Register the public keys of new sites with the SuperLink."""
        with closing(self.connection()) as connection:
            for site in self.sites.values():
                if (site.folder / "registered").exists():
                    continue
                key = str(site.folder / "key.pub")
                answer = connection.ask("supernode", "register", key, "own", "--name", site.name)
                if not answer.get("success"):
                    raise RunFailed(
                        f"the key of site {site.name!r} was not registered: "
                        f"{one_line(str(answer.get('error-message')))}"
                    )
                (site.folder / "registered").write_text(str(answer["node-id"]))

    def healthy(self) -> bool:
        """Return whether the SuperLink answers."""
        return answers(self.port, 2.0, self.authority)

    def check(self) -> None:
        """Raise UserError with the reason if no run could be started on this
        deployment.
        """
        self.check_connection(self.authority)
        down = [site.name for site in self.sites.values() if not site.serves()]
        if down:
            raise UserError(
                f"not running, or cut off: {', '.join(down)}: start them with `fedapps deploy "
                f"up --dir {self.folder}`"
            )

    def check_connection(self, authority: Path) -> None:
        """Raise UserError with the reason if a site that trusts this authority cannot
        reach the SuperLink.
        """
        check_connection(HOST, self.port, authority)

    def stop(self) -> None:
        """End all processes; the folder is kept, and `start` continues from it."""
        # Sites first: a site that does not sign off from the SuperLink cannot reconnect
        # for a minute.
        end_programs(list(self.sites.values()))
        end_programs([self.superlink])

    def remove(self) -> None:
        """End all processes and remove the folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        self.guard = Guard(self.mark, self.folder)  # in case this process is killed before `remove`
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()
        if self.guard is not None:
            self.guard.release()

    # --- questions --------------------------------------------------------------------

    def status(self) -> list[dict[str, str]]:
        """Return one row per site: its name, node id, the state of its process, and its
        status on the SuperLink.
        """
        seen: dict[str, str] = {}
        if self.healthy():
            with closing(self.connection()) as connection:
                seen = {
                    node["node-id"]: node["status"]
                    for node in connection.ask("supernode", "list", "own").get("nodes", [])
                }
        rows = []
        for site in self.sites.values():
            path = site.folder / "node-id"
            node = path.read_text() if path.exists() else ""
            process = "running" if site.serves() else "cut off" if site.alive() else "stopped"
            rows.append(
                {
                    "site": site.name,
                    "node": node,
                    "process": process,
                    "superlink": seen.get(node, "unknown"),
                }
            )
        return rows

    def warnings(self) -> list[str]:
        """Return one line for each certificate that has ended or will end soon."""
        renewal = (
            f"renew it with `fedapps deploy down --keep --dir {self.folder}`, then `fedapps "
            f"deploy up --dir {self.folder}`"
        )
        return warnings(ends(self.certificates), self.authority, renewal)

    def connection(self, poll: Callable[[], None] = lambda: None) -> Connection:
        """Return a connection for `flwr` commands on this deployment; the caller must
        close it.
        """
        base = self.folder / f"flwr-{os.getpid()}-{time.monotonic_ns()}"
        private_folder(base / "cwd")
        base.chmod(0o700)
        return Connection(base, self.superlink, poll)


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

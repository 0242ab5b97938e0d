"""`fedapps deploy`: runs a SuperLink and SuperNodes on this machine, and makes
certificates and keys for deployments on several machines.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedapps.deployment.certificates import (
    CA,
    SERVER,
    SERVER_KEY,
    check_connection,
    end_of,
    make_certificates,
    make_site_key,
    warnings,
)
from fedapps.deployment.local import FACTS, Deployment
from fedapps.deployment.warm import make_warm
from fedapps.engines.processes import program, signals_ignored
from fedapps.errors import UserError, refuse_first
from fedapps.lab.commands.options import Options, add
from fedapps.toml_text import Value

DEFAULT = Path("deployment")
REACH = "ports: open to every user of this machine, who can run code as you"


def add_options(deploy: argparse.ArgumentParser) -> None:
    """Add the subcommands."""
    deploy.description = (
        "Run a SuperLink and SuperNodes on the loopback interface, with TLS and node "
        "authentication."
    )
    actions = deploy.add_subparsers(required=True, metavar="ACTION")
    for name, (action, text, options) in ACTIONS.items():
        sentence = f"{text[0].upper()}{text[1:]}."
        parser = actions.add_parser(name, help=text, description=sentence)
        parser.set_defaults(action=action)
        add(parser, options)


def execute(arguments: argparse.Namespace) -> int:
    """Run the chosen action and return the exit status."""
    return int(arguments.action(arguments))


def _up(arguments: argparse.Namespace) -> int:
    folder = arguments.dir.expanduser().absolute()
    again = (folder / FACTS).exists()
    if again:
        if arguments.nodes is not None or arguments.site or arguments.port or arguments.warm:
            raise UserError(
                f"{folder} already holds a deployment. To start it again, give only --dir. To "
                "replace it, run `fedapps deploy down` first."
            )
        deployment = Deployment.open(folder)
    else:
        sites = sites_of(arguments)
        deployment = Deployment.create(folder, sites, arguments.port, arguments.warm)
    try:
        deployment.start()
    except BaseException:  # also Ctrl-C: leave no partial deployment behind
        with signals_ignored():
            (deployment.stop if again else deployment.remove)()
        raise
    run_option = "" if arguments.dir == DEFAULT else f" --deployment {arguments.dir}"
    dir_option = "" if arguments.dir == DEFAULT else f" --dir {arguments.dir}"
    print(
        f"SuperLink 127.0.0.1:{deployment.port}, sites {', '.join(deployment.sites)}, in {folder}"
    )
    print(REACH)
    print(f"run:   fedapps run FILE.toml --engine deployment{run_option}")
    config = f"--run-config 'num-clients={len(deployment.sites)} ...'"
    print(f"or:    fedapps deploy flwr{dir_option} run . own --stream {config}")
    print(f"end:   fedapps deploy down{dir_option}")
    return 0


def sites_of(arguments: argparse.Namespace) -> dict[str, dict[str, Value]]:
    """Return the node configurations requested by --nodes or --site, by site name."""
    if arguments.nodes is not None and arguments.site:
        raise UserError(
            "--nodes and --site exclude each other. With --nodes the sites share the settings' "
            "data; with --site each has its own."
        )
    if not arguments.site:
        nodes = 3 if arguments.nodes is None else arguments.nodes
        if nodes < 1:
            raise UserError(f"--nodes {nodes}: must be at least 1")
        return {f"site-{i}": {"partition-id": i, "num-partitions": nodes} for i in range(nodes)}
    sites: dict[str, dict[str, Value]] = {}
    for text in arguments.site:
        name, _, path = text.partition("=")
        source = Path(path).expanduser().absolute()
        refuse_first(
            (not path, f"--site {text}: write NAME=PATH, where PATH holds the site's data"),
            (name in sites, f"--site {name}: given twice. Every site needs a different name."),
            (not source.exists(), f"--site {name}: {source}: no such folder or file"),
        )
        sites[name] = {"client-id": name, "data": str(source)}
    return sites


def _status(arguments: argparse.Namespace) -> int:
    deployment = Deployment.open(arguments.dir)
    rows = deployment.status()
    print_warnings(deployment.warnings())
    link = (
        "answers"
        if deployment.healthy()
        else "running"
        if deployment.superlink.alive()
        else "stopped"
    )
    print(f"SuperLink 127.0.0.1:{deployment.port}: {link}, TLS, authenticated sites")
    print(REACH)
    table = Table(box=None, pad_edge=False)
    for column in ("site", "node", "process", "superlink"):
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*row.values())
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    healthy = link == "answers" and all(
        row["process"] == "running" and row["superlink"] == "online" for row in rows
    )
    return 0 if healthy else 1


def print_warnings(lines: list[str]) -> None:
    """Print warnings to standard error, since programs may read standard output."""
    for line in lines:
        print(f"fedapps: warning: {line}", file=sys.stderr)


def _logs(arguments: argparse.Namespace) -> int:
    deployment = Deployment.open(arguments.dir)
    if arguments.site and arguments.site not in deployment.sites:
        raise UserError(f"no site {arguments.site!r}: choose one of {', '.join(deployment.sites)}")
    source = deployment.sites[arguments.site] if arguments.site else deployment.superlink
    print("\n".join(source.words().splitlines()[-arguments.lines :]))
    return 0


def _flwr(arguments: argparse.Namespace) -> int:
    deployment = Deployment.open(arguments.dir)
    command = [str(program("flwr")), *arguments.arguments]
    return subprocess.run(command, env=deployment.superlink.environment).returncode


def _down(arguments: argparse.Namespace) -> int:
    deployment = Deployment.open(arguments.dir)
    with signals_ignored():
        (deployment.stop if arguments.keep else deployment.remove)()
    print(f"stopped, {deployment.folder} " + ("kept" if arguments.keep else "removed"))
    return 0


def _certificates(arguments: argparse.Namespace) -> int:
    folder = arguments.dir.expanduser().absolute()
    make_certificates(folder, arguments.hosts)
    print(
        f"server: {folder / SERVER} (until {end_of(folder / SERVER):%Y-%m-%d}) and "
        f"{folder / SERVER_KEY} (secret)"
    )
    print(f"sites:  {folder / CA} (until {end_of(folder / CA):%Y-%m-%d})")
    print_warnings(warnings({folder / CA: end_of(folder / CA)}, folder / CA))
    return 0


def _key(arguments: argparse.Namespace) -> int:
    public = make_site_key(arguments.file.expanduser().absolute())
    print(f"stays at the site: {public.with_suffix('')} (secret)\nto the server:     {public}")
    return 0


def _warm(arguments: argparse.Namespace) -> int:
    folder = make_warm(arguments.folder, arguments.installed)
    print(f"PATH={folder}:$PATH flower-supernode ...")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    host, _, port = arguments.address.rpartition(":")
    refuse_first(
        (not host or not port.isdigit(), f"{arguments.address!r}: write HOST:PORT"),
        (not arguments.ca.is_file(), f"--ca {arguments.ca}: no such file"),
    )
    end = check_connection(host.strip("[]"), int(port), arguments.ca)
    server = Path(f"the certificate of {arguments.address}")
    print_warnings(warnings({arguments.ca: end_of(arguments.ca), server: end}, arguments.ca))
    print(f"{arguments.address} can be reached, and its certificate is valid")
    return 0


FOLDER: Options = {
    "--dir": {
        "type": Path,
        "default": DEFAULT,
        "metavar": "DIR",
        "help": f"folder of the deployment (default: {DEFAULT})",
    }
}
#: The function of each subcommand, what it does, and its options.
ACTIONS: dict[str, tuple[Callable[[argparse.Namespace], int], str, Options]] = {
    "up": (
        _up,
        "start a deployment, or its stopped processes",
        {
            **FOLDER,
            "--nodes": {
                "type": int,
                "metavar": "N",
                "help": "number of sites; they share the data of the settings (default: 3)",
            },
            "--site": {
                "action": "append",
                "default": [],
                "metavar": "NAME=PATH",
                "help": "a site with its own data; repeat the option for more sites",
            },
            "--port": {
                "type": int,
                "help": "port of the SuperLink on 127.0.0.1 (default: a free one)",
            },
            "--warm": {
                "action": "store_true",
                "help": "each site imports its client's packages once and forks that process for "
                "every message: messages are answered sooner",
            },
        },
    ),
    "status": (
        _status,
        "show which sites are running and connected; exit status 1 unless all are",
        FOLDER,
    ),
    "logs": (
        _logs,
        "print the log of the SuperLink or of a site",
        {
            **FOLDER,
            "site": {"nargs": "?", "metavar": "SITE", "help": "default: the SuperLink"},
            "--lines": {
                "type": int,
                "default": 50,
                "metavar": "N",
                "help": "print the last N lines (default: 50)",
            },
        },
    ),
    "flwr": (
        _flwr,
        "run Flower's `flwr` on the deployment, whose connection is named `own`",
        {
            **FOLDER,
            "arguments": {
                "nargs": argparse.REMAINDER,
                "metavar": "...",
                "help": "for example: run . own --stream",
            },
        },
    ),
    "down": (
        _down,
        "stop all processes and remove the folder",
        {
            **FOLDER,
            "--keep": {
                "action": "store_true",
                "help": "keep the folder with the keys, the data and the clients' stored state",
            },
        },
    ),
    "certificates": (
        _certificates,
        "write a CA and a server certificate for deployments on several machines",
        {
            "hosts": {
                "nargs": "+",
                "metavar": "HOST",
                "help": "host names and addresses under which sites reach the server",
            },
            "--dir": {
                "type": Path,
                "default": Path("certificates"),
                "metavar": "DIR",
                "help": "folder for the files (default: certificates)",
            },
        },
    ),
    "key": (
        _key,
        "write a key pair for a site, FILE and FILE.pub",
        {"file": {"type": Path, "metavar": "FILE"}},
    ),
    "warm": (
        _warm,
        "write a folder to put first on a SuperNode's PATH: its clients then start faster",
        {
            "folder": {"type": Path, "metavar": "DIR"},
            "--installed": {
                "action": "store_true",
                "help": "clients run the app that is installed here, not the one that a run brings",
            },
        },
    ),
    "check": (
        _check,
        "check whether this machine can reach a SuperLink, and if not, print the reason",
        {
            "address": {"metavar": "HOST:PORT"},
            "--ca": {
                "type": Path,
                "required": True,
                "metavar": "FILE",
                "help": "the CA's certificate",
            },
        },
    ),
}

"""The command `fedapps`: run, watch, sweep, export, adapt, data, methods, settings,
compare, deploy.

Exit status: 0 success; 1 the run failed; 2 bad settings or input; 130 interrupted.
"""

import argparse
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedapps import json_log
from fedapps.engines.app_folder import check_packages
from fedapps.errors import INTERRUPTED, USAGE_ERROR, RunFailed, UserError

# Imported by the command, but not installed with the library alone: what the extra
# `app` brings.
APPLICATION = {
    "torch",
    "torchvision",
    "scipy",
    "daqp",
    "ray",
    "flwr_datasets",
    "datasets",
    "sklearn",
    "matplotlib",
    "PIL",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    arguments = parse(argv)
    json_log.choose(getattr(arguments, "log_format", "text"))
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        check_packages()
        return int(arguments.command(arguments))
    except UserError as error:
        tell(str(error))
        return USAGE_ERROR
    except RunFailed as error:
        tell(f"the run failed: {error}")
        return 1
    except ModuleNotFoundError as error:
        if (missing := str(error.name).partition(".")[0]) not in APPLICATION:
            raise
        print(
            f"fedapps: {missing} is not installed: the command needs more than the library, pip "
            "install 'fedapps[app]'",
            file=sys.stderr,
        )
        return USAGE_ERROR
    except KeyboardInterrupt:
        print("fedapps: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has exited, for example `| head`
        sys.stderr.close()
        return 1


def tell(text: str) -> None:
    """Print what ended the command."""
    print(
        json_log.line("ERROR", text, event="error") if json_log.chosen() else f"fedapps: {text}",
        file=sys.stderr,
    )


def entry() -> None:
    """Entry point of the installed command."""
    sys.exit(main())


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed command line; settings may precede and follow options."""
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    if rest and (not hasattr(arguments, "settings") or any(text.startswith("-") for text in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        arguments.settings += rest
    return arguments


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedapps",
        description="Federated-learning methods for heterogeneous clients, on Flower.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser(
        "run", help="run one method", description="Run one method and write its results folder."
    )
    run.add_argument(
        "settings", nargs="*", metavar="FILE.toml | key=value", help="settings; later ones win"
    )
    run.add_argument(
        "--engine",
        choices=["ray", "inline", "deployment"],
        default="ray",
        help="Flower's Ray simulation (default), this process, or the SuperNodes of a deployment",
    )
    run.add_argument(
        "--deployment",
        type=Path,
        default=Path("deployment"),
        metavar="DIR",
        help="folder of the deployment (default: deployment)",
    )
    run.add_argument(
        "--nodes",
        type=int,
        metavar="N",
        help="virtual clients (num-clients; default: as many as the data have, or 20)",
    )
    run.add_argument(
        "--gpus-per-client",
        type=float,
        default=0.0,
        metavar="F",
        help="share of a GPU for each client (ray)",
    )
    run.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="one-CPU worker processes (ray; default: the CPUs of the machine)",
    )
    run.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help="join this Ray cluster, whose machines share DIR and the data (ray; docs/cluster.md)",
    )
    run.add_argument(
        "--node-per-client",
        action="store_true",
        help="a Flower node of its own for every client, instead of one a worker that clients "
        "share: same numbers, slower (ray)",
    )
    run.add_argument(
        "--port",
        type=int,
        help="port of the run's own SuperLink on 127.0.0.1 (ray; default: a free one)",
    )
    run.add_argument(
        "--no-wall",
        action="store_true",
        help="leave the run's ports open to every process of this machine, and it the network "
        "(ray)",
    )
    run.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="results folder (default: results/METHOD-TASK-seedN)",
    )
    run.add_argument("--resume", action="store_true", help="go on from the last checkpoint in DIR")
    run.add_argument("--overwrite", action="store_true", help="delete the run that DIR holds first")
    run.add_argument(
        "--metrics-port",
        type=int,
        metavar="N",
        help="serve counters for Prometheus at 127.0.0.1:N/metrics meanwhile",
    )
    json_log.add_option(run)
    run.add_argument(
        "--watch",
        action="store_true",
        help="serve a page that follows the run, to this machine alone",
    )
    run.set_defaults(command=_run)

    watch = commands.add_parser(
        "watch",
        help="follow a run or a sweep in the browser",
        description="Serve a page on 127.0.0.1 that follows a run, or the runs of a sweep, while "
        "they "
        "write. Ctrl-C ends it.",
    )
    watch.add_argument("folder", type=Path, metavar="DIR", help="results folder")
    watch.add_argument(
        "--port", type=int, default=0, metavar="P", help="where to listen (default: a free port)"
    )
    watch.add_argument("--until-end-of-input", action="store_true", help=argparse.SUPPRESS)
    watch.set_defaults(command=_watch)

    sweep = commands.add_parser(
        "sweep",
        help="run a grid of settings and seeds",
        description="Run every combination of a file's lists, and make tables, plots and a page of "
        "them.",
    )
    sweep.add_argument(
        "file",
        type=Path,
        metavar="FILE.toml | DIR",
        help="settings; a list is an axis of the grid. DIR: all sweeps in it, in turn",
    )
    sweep.add_argument(
        "settings",
        nargs="*",
        metavar="key=value",
        help="settings that win over the file's; lists, too: seed=[0,1]",
    )
    sweep.add_argument(
        "--scale",
        default="",
        metavar="NAME",
        help="use the file's table [scale.NAME]; full: the file as it stands",
    )
    sweep.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="read a data set from DIR/NAME where DIR has the last name of its source",
    )
    sweep.add_argument(
        "--jobs",
        type=int,
        default=0,
        metavar="N",
        help="runs at a time (default: as many as there are cores)",
    )
    sweep.add_argument(
        "--engine",
        choices=["inline", "ray"],
        default="inline",
        help="parallel processes (default), or Ray, run after run",
    )
    sweep.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help="run on this Ray cluster: runs as tasks, or, with --engine ray, one after the other",
    )
    sweep.add_argument(
        "--gpus-per-client",
        type=float,
        default=0.0,
        metavar="F",
        help="share of a GPU for each client (ray)",
    )
    sweep.add_argument(
        "--out", type=Path, metavar="DIR", help="results folder (default: results/sweep-FILE)"
    )
    sweep.add_argument(
        "--watch",
        action="store_true",
        help="serve a page that follows the runs, to this machine alone",
    )
    sweep.add_argument("--dry-run", action="store_true", help="list the runs and start none")
    json_log.add_option(sweep)
    sweep.set_defaults(command=_sweep)

    export = commands.add_parser(
        "export",
        help="write the model that a client was scored with",
        description="Write the model that a client of a finished run was scored with: its arrays, "
        "as safetensors under the net's names.",
    )
    export.add_argument("run", type=Path, metavar="DIR", help="results folder")
    export.add_argument(
        "--client", type=int, metavar="N", help="whose model (default: the global one, of nobody)"
    )
    export.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the arrays (default: DIR/client-N.safetensors, DIR/global.safetensors)",
    )
    export.add_argument(
        "--program",
        type=Path,
        metavar="FILE.pt2",
        help="also the net with its arrays, by torch.export",
    )
    export.set_defaults(command=_export)

    adapt = commands.add_parser(
        "adapt",
        help="train an exported model further on samples of one's own",
        description="Train a model that `fedapps export` wrote on the samples of one site, and "
        "write the best epoch.",
    )
    adapt.add_argument(
        "model", type=Path, metavar="MODEL", help="safetensors file of `fedapps export`"
    )
    adapt.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="the samples: a folder or file, as a site's data",
    )
    adapt.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the new model (default: MODEL-adapted.safetensors)",
    )
    adapt.add_argument(
        "--epochs", type=int, default=5, metavar="E", help="local epochs (default: 5)"
    )
    adapt.add_argument(
        "--rate",
        type=float,
        metavar="R",
        help="learning rate (default: that of the run's first round)",
    )
    adapt.add_argument(
        "--batch-size", type=int, metavar="B", help="samples of a step (default: the run's)"
    )
    adapt.add_argument(
        "--validation",
        type=float,
        default=0.2,
        metavar="SHARE",
        help="of the samples, to choose the epoch by (default: 0.2)",
    )
    adapt.add_argument(
        "--net", default="", metavar="MODULE:NAME", help="the net, where it is code of your own"
    )
    adapt.add_argument("--overwrite", action="store_true", help="replace the file that is there")
    adapt.set_defaults(command=_adapt)

    data = commands.add_parser(
        "data",
        help="show who gets what",
        description="Show the partition that settings describe, before anything trains: samples by "
        "client and class, and what looks "
        "wrong.",
    )
    data.add_argument(
        "settings", nargs="*", metavar="FILE.toml | key=value", help="settings; later ones win"
    )
    data.add_argument("--png", type=Path, metavar="FILE", help="also draw it")
    data.set_defaults(command=_data)

    methods = commands.add_parser("methods", help="list the methods")
    methods.add_argument("--names", action="store_true", help="only the names, one a line")
    methods.set_defaults(command=_methods)

    settings = commands.add_parser(
        "settings",
        help="say what can be set",
        description="List all settings, or say what those of one table, or one key, mean.",
    )
    settings.add_argument(
        "name", nargs="?", default="", metavar="TABLE | KEY", help="what to say more about"
    )
    settings.set_defaults(command=_settings)

    compare = commands.add_parser(
        "compare",
        help="compare finished runs",
        description="One table, plot and page over several runs.",
    )
    compare.add_argument("runs", nargs="+", type=Path, metavar="DIR")
    compare.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where the page goes (default: comparison, beside the first run)",
    )
    compare.add_argument(
        "--worst",
        type=_share,
        default=0.1,
        metavar="SHARE",
        help="how many of the clients are the worst (default: 0.1)",
    )
    compare.add_argument(
        "--reference",
        type=Path,
        metavar="DIR",
        help="run over which each client's gain is measured (default: the first of method local)",
    )
    compare.set_defaults(command=_compare)

    figures = commands.add_parser(
        "figures",
        help="write the plots of a run as files for papers",
        description="Write the plots of a run, or those of several runs compared, as files for "
        "papers.",
    )
    figures.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="DIR",
        help="results folder; of a sweep: its DIR/cells/*",
    )
    figures.add_argument(
        "--format", choices=("pdf", "png", "svg"), default="pdf", help="of the files (default: pdf)"
    )
    figures.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where they go (default: figures, in or beside the first run)",
    )
    figures.set_defaults(command=_figures)

    from fedapps.commands.deploy import add_parser

    add_parser(commands)
    return parser


def _share(text: str) -> float:
    share = float(text)
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text}: must be above 0 and at most 1")
    return share


def _run(arguments: argparse.Namespace) -> int:
    from fedapps.commands.run import run

    return run(arguments)


def _watch(arguments: argparse.Namespace) -> int:
    from fedapps.live.page import watch

    return watch(arguments.folder, arguments.port, arguments.until_end_of_input)


def _figures(arguments: argparse.Namespace) -> int:
    from fedapps.commands.figures import figures

    return figures(arguments)


def _sweep(arguments: argparse.Namespace) -> int:
    from fedapps.commands.sweep import sweep

    return sweep(arguments)


def _export(arguments: argparse.Namespace) -> int:
    from fedapps.commands.export import export

    return export(arguments)


def _adapt(arguments: argparse.Namespace) -> int:
    from fedapps.commands.adapt import adapt

    return adapt(arguments)


def _data(arguments: argparse.Namespace) -> int:
    from fedapps.commands.data import show

    return show(arguments)


def _methods(arguments: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from fedapps.extensions.registered import registered
    from fedapps.methods import METHODS, registered_methods

    others = registered("method")
    if arguments.names:
        print("\n".join(dict.fromkeys([*METHODS, *others])))
        return 0
    found, warnings = registered_methods()
    for warning in warnings:
        print(f"fedapps: warning: {warning}", file=sys.stderr)
    table = Table(box=None, pad_edge=False)
    for column in ("method", "what it does", "kind", "paper", *(["from"] if found else [])):
        table.add_column(column, no_wrap=column == "method")
    for name, method in [*METHODS.items(), *found.items()]:
        origin = [others[name].package if name in found else ""] if found else []
        table.add_row(name, method.summary, method.trait, method.paper, *origin)
    Console(
        width=None if sys.stdout.isatty() else max(140, shutil.get_terminal_size().columns)
    ).print(table)
    return 0


def _settings(arguments: argparse.Namespace) -> int:
    from fedapps.commands.settings import settings

    return settings(arguments)


def _compare(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from fedapps.results.compare import compare

    result = compare(arguments.runs, arguments.out, arguments.worst, arguments.reference)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(result.table)
    for section in result.sections:
        console.print(section.terminal())
    print(f"report: {result.report.resolve()}")
    return 0


if __name__ == "__main__":  # as `python -m fedapps` does
    entry()

"""Preparation of a run from the user's settings: defaults, absolute paths, the number
of clients, checks, the results folder.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import RecordDict
from flwr.client import NumPyClient
from flwr.serverapp.strategy import Strategy

from fedapps.clients.base.options import TrainOptions
from fedapps.clients.base.store import MessageStore
from fedapps.data.source import is_local
from fedapps.errors import UserError, refuse_first
from fedapps.extensions.own_code import guarded
from fedapps.methods import METHODS
from fedapps.models.options import local_name
from fedapps.records.lock import LOCKS, WRITER, FolderLock
from fedapps.records.rounds import check_resumable, check_same_data, set_status
from fedapps.records.writer import FILES, FOLDERS
from fedapps.runs.assembly import (
    Parts,
    build_client,
    build_strategy,
    build_task,
    validation_setting,
)
from fedapps.runs.devices import Asked, chosen_device
from fedapps.settings.reading import chosen, default_config, read_settings
from fedapps.settings.rules import COUNTED, refuse
from fedapps.settings.settings import Settings
from fedapps.tasks.base import TorchTask
from fedapps.tasks.capabilities import HasNaturalClients, NamesNet, Task
from fedapps.tasks.registry import TASKS, find_task
from fedapps.tracking.names import check_installed

# Number of virtual clients if neither the settings nor the data determine it.
DEFAULT_CLIENTS = 20


def with_defaults(given: Mapping[str, Any]) -> Settings:
    """Return the given settings on top of the method's and the task's defaults, with
    absolute paths: workers run in another directory.
    """
    method, task = chosen(given)
    # naming the column of the clients implies a partition by these clients
    if given.get("data.natural-id") and "data.partition" not in given:
        given = {**given, "data.partition": "natural"}
    defaults = {**method.defaults, **find_task(task).defaults}
    if method.chooses:
        defaults.pop("data.validation", None)
    if given.get("train.optimizer", TrainOptions.optimizer) != TrainOptions.optimizer:
        for key in ("train.learning-rate", "train.momentum"):  # those of SGD
            defaults.pop(key, None)
    settings = read_settings({**defaults, **given})
    own, model = settings.data.source in find_task(task).sources, settings.model
    source = settings.data.source if own else local(settings.data.source)
    library = getattr(settings.options, "library", "task")
    return settings.but(
        data={"source": source, "synthetic": absolute(settings.data.synthetic)},
        model={"weights": absolute(model.weights), "name": local_name(model.name)},
        public={"source": local(settings.public.source)},
        time={"file": absolute(settings.time.file)},
        # the user's own task may name its data in a table of its own
        problem={"source": local(settings.problem.source)}
        if hasattr(settings.problem, "source")
        else settings.problem,
        options={"library": absolute(library)}
        if library not in ("task", "clients")
        else settings.options,
    )


def absolute(path: str) -> str:
    """Return a path from the user's folder or the working directory as an absolute one;
    "" as it is.
    """
    return str(Path(path).expanduser().absolute()) if path else ""


def local(source: str) -> str:
    """Return the source of data, as an absolute path if it is a local one."""
    return absolute(source) if is_local(source) else source


def assemble(settings: Settings, asked: Asked | None = None, here: bool = False) -> Parts:
    """Return the parts of a run, with the number of clients, the net's name and the
    device filled in. Raises ``UserError`` if they do not fit together. ``asked``: how
    the run is asked for; by default on the inline engine. ``here``: task and strategy
    are on the run's device, since the run is executed with them; else on the CPU.
    """
    # imported late: it loads PyTorch, while a SuperLink may be starting
    from fedapps.models.image_nets import BY_SHAPE
    from fedapps.models.lora import fingerprint

    check_installed(settings.track)
    auto = settings.device == "auto"
    wanted = str(settings.recorded("device") or "auto") if auto else settings.device
    given = settings.but(device="cpu")
    task = build_task(given)
    settings = with_clients(given, task)
    refuse(settings, COUNTED)
    if settings.num_clients != given.num_clients:
        task = build_task(settings)
    device = chosen_device(settings.but(device=wanted), task, asked or Asked())
    if here and device != "cpu":
        settings = settings.but(device=device)
        task = build_task(settings)
    with guarded("task", settings.task, "check failed", own=settings.task not in TASKS):
        task.check(settings.num_clients)
    if settings.model.name == BY_SHAPE and isinstance(task, NamesNet):
        # so that the results contain the net's name
        settings = settings.but(model={"name": task.usual_net})
    strategy = checked_strategy(settings, task)
    if settings.model.adapter != "none" and isinstance(task, TorchTask):  # sites compare
        settings = settings.but(model={"frozen": fingerprint(task.frozen)})
    if not settings.sites.own:
        check_client(settings, task)
        check_validation(settings, task)
    return Parts(settings.but(device=device), task, strategy)


def check_validation(settings: Settings, task: Any) -> None:
    """Raise ``UserError`` if a setting needs validation samples and the first clients
    have none.
    """
    if not settings.validates:
        return
    data = [task.client_data(k, settings.num_clients) for k in range(min(5, settings.num_clients))]
    if all(d.validation is d.train or not len(d.validation) for d in data):
        raise UserError(
            f"{settings.validates}: the clients have no validation samples: set "
            f"{validation_setting(settings, task)}, to 0.2 say"
        )


def with_clients(settings: Settings, task: Any) -> Settings:
    """Return the settings with the number of clients: the given one, else that of the
    data, else the default.

    If there are fewer clients than a round has by default, all take part.
    """
    if not settings.num_clients:
        natural = task.natural_clients() if isinstance(task, HasNaturalClients) else 0
        settings = settings.but(num_clients=natural or DEFAULT_CLIENTS)
    few = settings.num_training < Settings.clients_per_round
    return (
        settings.but(clients_per_round=0)
        if few and settings.clients_per_round == Settings.clients_per_round
        else settings
    )


def checked_strategy(settings: Settings, task: Task) -> Strategy:
    """Return the strategy. Raises ``UserError`` for options that do not fit the task,
    before the run starts.
    """
    method = settings.entry
    try:
        return build_strategy(settings, task)
    except ValueError as error:
        raise UserError(
            f"{method.table}.{error}" if method.table and not method.wrap else str(error)
        ) from None


def check_client(settings: Settings, task: Task) -> None:
    """Build a client of the user's own method or task, which imports all modules that
    clients need. Raises ``UserError``.
    """
    if settings.task in TASKS and all(name in METHODS for name in settings.names):
        return
    key, name = (
        ("task", settings.task) if settings.method in METHODS else ("method", settings.method)
    )
    with guarded(key, name, "cannot make a client", own=True):
        client = build_client(settings, task, 0, settings.num_clients, MessageStore(RecordDict()))
    if not isinstance(client, NumPyClient):
        raise UserError(
            f"{key} = {name!r}: its client is a {type(client).__name__}: it must be a "
            "flwr.client.NumPyClient"
        )


#: What a start leaves that is killed before its record.
OF_A_START = {*LOCKS, "run.log", "settings.toml.partial"}


def ended_before_it_began(folder: Path) -> bool:
    """Return whether a start of a run that was killed has left its locks, and no
    record.
    """
    held = {path.name for path in folder.glob("*")}
    return bool(held & {*LOCKS}) and held <= OF_A_START


def prepare_folder(settings: Settings, overwrite: bool) -> None:
    """Create the results folder. With ``overwrite``, delete the run in it, but nothing
    else. Raises ``UserError``, also if a run is writing to the folder.
    """
    folder = Path(settings.out)
    with FolderLock(folder, WRITER):
        _prepare(settings, folder, overwrite)


def _prepare(settings: Settings, folder: Path, overwrite: bool) -> None:
    present = sorted(path.name for path in folder.iterdir() if path.name not in LOCKS)
    if settings.resume:
        check_resumable(folder, settings.flat(), default_config(settings.flat()))
        check_same_data(folder, settings.flat())
        try:
            set_status(folder, "running")
        except OSError as error:
            raise UserError(f"--out {folder}: cannot write to it: {error.strerror}") from None
        return
    if not present:
        return
    refuse_first(
        (
            not overwrite,
            f"{folder} is not empty ({', '.join(present[:3])}): add --overwrite or --resume, or "
            "choose another --out",
        ),
        (
            "settings.toml" not in present and not OF_A_START.issuperset(present),
            f"{folder} is not the folder of a run, so --overwrite deletes nothing in it: choose "
            "another --out",
        ),
    )
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
    for name in FOLDERS:
        shutil.rmtree(folder / name, ignore_errors=True)

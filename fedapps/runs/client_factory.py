"""Construction of a run's clients: the task, built once per process and shared by its
clients, and the stores of client state.
"""

import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.client import NumPyClient

from fedapps.algorithms.common.seeds import derived_seed
from fedapps.clients.base.adapter import client_id, is_site
from fedapps.clients.base.store import DiskStore, MessageStore, Store
from fedapps.errors import SiteFault, what_to_install
from fedapps.runs.assembly import build_client, build_task
from fedapps.runs.devices import repeatable
from fedapps.settings.reading import read_settings
from fedapps.settings.settings import Settings
from fedapps.tasks.capabilities import Task

MAX_RUNS = 4
#: Settings and tasks of this process's latest runs, by configuration and site data. A
#: site that chooses its device has it in the configuration.
RUNS: OrderedDict[tuple[frozenset[tuple[str, Any]], str], tuple[Settings, Task]] = OrderedDict()


def prepare(config: frozenset[tuple[str, Any]], site_data: str = "") -> tuple[Settings, Task]:
    """Return the settings and task of a run configuration. ``site_data``: location of
    this site's own data, or "".
    """
    if (config, site_data) not in RUNS:
        settings = read_settings(dict(config))
        _keep((config, site_data), settings, build_task(settings, site_data))
    return RUNS[config, site_data]


def share(config: Mapping[str, Any], settings: Settings, task: Task) -> None:
    """Make the clients of this process use a task that was built for the server."""
    _keep((frozenset(config.items()), ""), settings, task)


def _keep(key: tuple[frozenset[tuple[str, Any]], str], settings: Settings, task: Task) -> None:
    RUNS[key] = settings, task
    while len(RUNS) > MAX_RUNS:
        RUNS.popitem(last=False)
    repeatable(settings.device)
    one_thread()


def one_thread() -> None:
    """Limit PyTorch, if it is loaded, to one thread: a virtual client has one CPU, and
    more threads would compete for shared cores.
    """
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


def client_of(context: Context) -> NumPyClient:
    """Return the client that answers one message."""
    settings, task = task_of(context)
    name = client_id(context)
    num_clients = int(str(context.node_config.get("num-partitions", settings.num_clients)))
    store = store_of(settings, context, name)
    with naming_the_extra(settings):
        client = build_client(settings, task, name, num_clients, store)
    one_thread()  # again: building the client may have imported PyTorch
    return client


def task_of(context: Context) -> tuple[Settings, Task]:
    """Return the settings and task of a message's run, on this site's own data if it
    has any. Raises ``UserError``.
    """
    config, own = dict(context.run_config), context.node_config
    if "device" in own:
        config["device"] = own["device"]
    if "model" in own:
        config["model.name"] = own["model"]
    settings, task = prepare(frozenset(config.items()), str(own.get("data", "")))
    if "model" in own and not all(method.any_net for method in settings.methods):
        raise SiteFault(
            f"model = {own['model']!r} in this site's node configuration: {settings.method} needs "
            "one net for all clients: leave it out"
        )
    if settings.sites.own and "data" not in context.node_config:
        raise SiteFault(
            "the settings describe the sites' own data, but this site has no data path: add "
            'data="/path" to its node configuration'
        )
    return settings, task


def check_data(context: Context) -> None:
    """Read this site's own data. Raises ``UserError`` if they do not match the
    settings.
    """
    settings, task = task_of(context)
    with naming_the_extra(settings):
        task.client_data(client_id(context), settings.num_clients)  # type: ignore[attr-defined]
        client_of(context)


@contextmanager
def naming_the_extra(settings: Settings) -> Iterator[None]:
    """Raise ``UserError`` with what to install where a package is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if not (line := what_to_install(error, f"method {settings.method!r}", site=True)):
            raise
        raise SiteFault(line) from None


def clients_of(context: Context) -> list[str]:
    """Return the ids of the clients that belong to this site, ``SITE:NAME``, or [] if
    each site is one client. Raises ``UserError``.
    """
    settings, task = task_of(context)
    names = task.names() if settings.sites.client else []  # type: ignore[attr-defined]
    return [f"{client_id(context)}:{name}" for name in names]


def store_of(settings: Settings, context: Context, name: int | str) -> Store:
    """Return the store of this client's state: its own folder, or Flower's context. A
    site writes below its own ``store-dir`` only.
    """
    here = settings.out and not is_site(context)
    folder = Path(settings.out) / "clients" if here else None
    # On a site's disk: one folder per results folder, so that a resumed run finds it.
    if "store-dir" in context.node_config:
        run = derived_seed(0, settings.out) if settings.out else context.run_id
        folder = Path(str(context.node_config["store-dir"])) / f"run-{run:x}"
    if settings.keeps_clients_on_disk and folder:
        own = str(name).replace("/", "%2F")  # the server may have named the client
        return DiskStore(folder / f"client-{own}", context.run_id)
    if settings.keep_best:
        raise SiteFault(
            "keep-best = true: this client has no folder for what it stores in the best round: "
            "set out, or on a site store-dir in its node configuration"
        )
    return MessageStore(context.state)

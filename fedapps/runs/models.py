"""The models of a finished run: the global one, and the one that a client was scored
with.

To get a client's model, the message of the run's last evaluation is rebuilt from the
folder. The client answers it with its stored state. Its model is returned if it gets
the scores that the run recorded.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.clientapp import ClientApp
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedapps import clients
from fedapps.algorithms.common.measures import leading_of, lower_is_better
from fedapps.algorithms.common.options import nearest
from fedapps.clients.base.precision import at_precision
from fedapps.data.scaling import Scale
from fedapps.engines.inline import InlineGrid
from fedapps.errors import UserError
from fedapps.extensions.own_code import check_trusted
from fedapps.formats import LEADING_MEANS, one_line
from fedapps.notes import quiet
from fedapps.records.measures import MARK
from fedapps.records.reader import RunFolder, read_run
from fedapps.runs.assembly import build_client, build_strategy, build_task
from fedapps.runs.client_factory import one_thread
from fedapps.runs.prepare import with_defaults
from fedapps.settings.settings import Settings
from fedapps.strategies.base.capabilities import declared
from fedapps.strategies.base.messages import innermost
from fedapps.strategies.families.pooled_choice import PooledChoice
from fedapps.strategies.families.shared_part import SharedPart
from fedapps.tasks.base import TorchTask
from fedapps.tasks.capabilities import HasNet, SplitsSamples
from fedapps.tasks.client_names import LONGEST, client_names
from fedapps.toml_text import read_toml

#: Largest difference from the recorded scores: enough for another machine, too small
#: for another model.
TOLERANCE = 1e-3


def scale_of(settings: Settings, task: Any, client: int | None) -> Scale | None:
    """Return how the samples of a client (``None``: of all clients) are scaled. Return
    ``None`` if they are not scaled, or if each site scales its own.
    """
    if settings.sites.own or not isinstance(task, SplitsSamples) or task.standardise == "none":
        return None
    if task.standardise == "sums":
        return task.common_scale(settings.num_clients)
    return None if client is None else task.scale_of(task.split(client, settings.num_clients)[0])


def check_usable(settings: Settings, task: Any, remedy: str) -> None:
    """Raise ``UserError`` if the method's global model is not meant to be used."""
    inner = innermost(build_strategy(settings, task))
    if isinstance(inner, SharedPart) and all(map(inner.travels, task.initial_arrays())):
        return
    found = declared(inner)
    if found is not None and found.no_global_model:
        raise UserError(
            f"method = {settings.method!r} has no global model to use: {found.no_global_model}: "
            f"{remedy}"
        )


def of_nobody(
    folder: Path, program: bool, trust: bool = False
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return the same as :func:`exported`, for the global model; scores are means over
    the clients, also of their own models (:func:`mean_scores`). With ``program`` the
    client is an arbitrary one, else ``None``. Raises ``UserError`` if the model is not
    a net.
    """
    import torch

    settings, run = settings_in(folder, own=not program, trust=trust), read_run(folder)
    task = build_task(settings)
    check_usable(settings, task, "name a client with --client")
    arrays = net_arrays(settings, task, run)
    one_thread()
    client: Any = (
        build_client(settings, task, 0, settings.num_clients, store_in(folder, 0))
        if program
        else None
    )
    facts = {"method": settings.method, "round": run.scored_round, **mean_scores(run)}
    return (
        client,
        facts,
        {name: torch.from_numpy(array.numpy().copy()) for name, array in arrays.items()},
    )


def mean_scores(run: RunFolder) -> dict[str, float]:
    """Return the mean over clients of the leading score: ``global-...`` of the global
    model and, unless they were scored with that, of the clients' own models.
    """
    for name in LEADING_MEANS:
        ours, own = run.numbers.get(f"global-{name}"), run.numbers.get(name)
        if ours is not None and own is not None:
            return {f"global-{name}": ours} | ({} if ours == own else {name: own})
    return {}


def exported(
    folder: Path, given: int | str, trust: bool = False
) -> tuple["clients.FedAvgClient", dict[str, Any], dict[str, Any]]:
    """Return the client of this name or number, facts about its model (method, round,
    scores, lambda or alpha) and the arrays by name.

    Raises ``UserError`` if the folder lacks the model that the client was scored with.
    """
    settings, run = settings_in(folder, trust=trust), read_run(folder)
    task = build_task(settings)
    number, called = identified(task, settings.num_clients, given)
    row = next((row for row in run.clients if row["client"] == called), None)
    if row is None:
        known = ", ".join(
            [str(row["client"]) for row in run.clients[:5]] + ["..."] * (len(run.clients) > 5)
        )
        near = nearest(called, (str(row["client"]) for row in run.clients))
        raise UserError(
            f"--client {one_line(called, LONGEST)}: {folder} has no scores of this client: {near}"
            f"choose one of {known}"
        )
    if row.get(MARK):
        raise UserError(
            f"--client {called}: it is a new client (num-new-clients), so {folder} has no model "
            "of it: choose another"
        )
    one_thread()
    client: Any = build_client(
        settings, task, number, settings.num_clients, store_in(folder, number)
    )
    if not hasattr(client, "personal_state_dict"):
        raise UserError(
            f"method = {settings.method!r}: its clients have no personal torch model; without "
            "--client the global one is exported, if it is a net"
        )
    parameters, config = message(settings, task, run, row)
    tensors, metrics = at_precision(client, config).personal_state_dict(parameters, config)
    at_precision(client, {})  # for exports
    name = leading_of(metrics)
    now, then = float(metrics[name]), float(row[name])
    # Errors have the unit of the targets, so the tolerance is relative.
    if abs(now - then) > TOLERANCE * (then if lower_is_better(name) else 1.0):
        raise UserError(
            f"client {called} cannot be exported: its personal model was not saved in {folder} "
            f"(the saved state has {name} {now:.4f}, the run recorded {then:.4f}). Run again with "
            "checkpoint-every=10 or client-store=disk"
        )
    numbers = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
    return (
        client,
        {"method": settings.method, "client": called, "round": config["server-round"], **numbers},
        tensors,
    )


def identified(task: Any, num_clients: int, given: int | str) -> tuple[int, str]:
    """Return number and name of the client that a name, or else a number, means; -1 if
    there is none. A client without a name is called by its number.
    """
    names = client_names(task, num_clients)
    if str(given) in names:
        return names.index(str(given)), str(given)
    number = int(given) if str(given).isdecimal() else -1
    return number, names[number] if 0 <= number < len(names) else str(given)


def store_in(folder: Path, number: int) -> "clients.DiskStore":
    """Return the store of a client in a run's folder."""
    return clients.DiskStore(folder / "clients" / f"client-{number}", "export")


def settings_in(folder: Path, own: bool = False, trust: bool = False) -> Settings:
    """Return the settings of a run. Raises ``UserError`` if the folder has no run; if
    the data are at the sites, unless ``own``; and if the settings name code, unless
    ``trust``.
    """
    if not (folder / "settings.toml").is_file() or not (folder / "model.safetensors").is_file():
        raise UserError(
            f"{folder} holds no finished run: it has no settings.toml and model.safetensors"
        )
    recorded = {
        key: value
        for key, value in read_toml(folder / "settings.toml").items()
        if not key.startswith("versions.")
    }
    if not trust:
        check_trusted(folder / "settings.toml", recorded)
    # wherever it was trained: this machine may have no GPU
    here = {"out": str(folder.absolute()), "device": "cpu"}
    settings = with_defaults({**recorded, **here})
    if settings.sites.own and not own:
        raise UserError(f"{folder}: the samples and models of its clients are at the sites")
    return settings


def message(
    settings: Settings, task: Any, run: RunFolder, row: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arrays and the configuration of the run's last evaluation, for the
    client with the scores ``row``. Raises ``UserError``.
    """
    rounds = [row["round"] for row in run.rounds if "evaluate" in row]
    if not rounds:
        raise UserError(
            f"{run.path}: the run has no evaluation: resume it, or choose another folder"
        )
    arrays = net_arrays(settings, task, run)
    number = run.scored_round
    # allow any version of the client's state up to that round
    first = {"first-round": number + 1, "checkpoint-round": number}
    config = ConfigRecord(
        {
            "seed": settings.seed,
            "num-rounds": settings.num_rounds,
            "server-round": number,
            **first,
            **settings.train.to_config(),
        }
    )
    strategy = build_strategy(settings, task)
    if isinstance(inner := innermost(strategy), PooledChoice):
        inner.recall(number, row)
    with quiet(logging.WARNING, "flwr"):  # no round is run
        (sent,) = strategy.configure_evaluate(number, arrays, config, InlineGrid(ClientApp(), 1))
    (record,), (configured,) = (
        sent.content.array_records.values(),
        sent.content.config_records.values(),
    )
    return [array.numpy().copy() for array in record.values()], dict(configured)


def net_arrays(settings: Settings, task: Any, run: RunFolder) -> ArrayRecord:
    """Return the arrays of a run's model. Raises ``UserError`` unless they belong to
    the task's net.
    """
    try:
        model = load_file(run.path / "model.safetensors")
    except (SafetensorError, OSError) as error:
        raise UserError(f"{run.path}: the model cannot be read ({error})") from error
    if settings.entry.any_net:
        return ArrayRecord({name: Array(array) for name, array in model.items()})
    names = list(task.work_model().state_dict()) if isinstance(task, HasNet) else []
    if sorted(model) != sorted(names):
        raise UserError(
            f"method = {settings.method!r}: it does not train the task's net, so there is no net "
            "to export"
        )
    return ArrayRecord({name: Array(model[name]) for name in names})  # safetensors sorts them


def whole(task: Any, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays of the task's net, with the adapters in its weights if the run
    trained some.
    """
    if not isinstance(task, TorchTask) or task.context.model.adapter == "none":
        return dict(tensors)
    from fedapps.models.lora import merged

    return merged(task.model_fn(0), task.work_model(), tensors)


def write_program(client: "clients.FedAvgClient", tensors: dict[str, Any], path: Path) -> None:
    """Write the net with these arrays as a PyTorch program (``torch.export``), for
    batches of any size. Raises ``UserError``.
    """
    import torch

    client.model.load_state_dict(tensors)
    x = client.data.test.x[:2]
    try:
        batch = torch.export.Dim("batch", min=1, max=2**20)
        torch.export.save(
            torch.export.export(client.model.eval(), (x,), dynamic_shapes=({0: batch},)), path
        )
    except Exception as error:
        raise UserError(
            f"--program: this net cannot be exported ({' '.join(str(error).split())[:200]})"
        ) from None

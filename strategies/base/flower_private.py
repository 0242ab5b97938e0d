"""All that this project uses of Flower beyond its public interface, in one place.

Flower may change each of these in any release. A test checks that no other module
imports a private name of Flower or depends on the wording of its messages. A comment
says what each is for and what would replace it.

The module is here because ``strategies`` and ``fedapps`` both use it; ``clients`` needs
no private name.
"""

import re
import uuid
from importlib import import_module
from typing import Any

from flwr.app import Message, Metadata, RecordDict
from flwr.clientapp import ClientApp

# The codes of error replies. Replaced by: a public enumeration beside `flwr.app.Error`.
from flwr.common.constant import ErrorCode as ErrorCode
from flwr.serverapp import Grid

# What a run logs at its start. Replaced by: a few log lines of our own.
from flwr.serverapp.strategy.strategy_utils import (
    log_strategy_start_info as log_strategy_start_info,
)

# The sample of a strategy in Flower's own loop, and the wait for enough nodes before.
# Replaced by: `random.sample` over `grid.get_node_ids()`.
from flwr.serverapp.strategy.strategy_utils import sample_nodes as sample_nodes

try:
    from flwr.supercore.task_identity import TaskIdentity
except ImportError:  # an older Flower asks nobody who makes a message
    TaskIdentity = None  # type: ignore[assignment, misc]

# The function of the program that a SuperNode starts for every message, which a warm
# process calls. Replaced by: a SuperNode that keeps its processes.
CLIENT_PROGRAM = "flwr.supernode.cli.flwr_clientapp:flwr_clientapp"
# The module that loads the app for it (`run_client_program`).
CLIENT_LOADER = "flwr.supernode.runtime.run_clientapp"

# --- texts, of which each would be replaced by a code or a field ----------------------

#: Answers of an app that registers no function for the query of this name: of the
#: message API, and with a ``client_fn``.
NO_QUERY = ("No query function registered with name '{name}'", "Invalid message type: query.{name}")
#: Reasons of an error reply by which a dead worker of a simulation is known.
WORKER_DIED = ("ActorDied", "ActorUnavailable")
#: Messages of exceptions that wrap the cause of a failed simulation.
WRAPPERS = ("An error was encountered. Ending simulation.", "Simulation Runtime crashed.")
#: Why a SuperLink rejects a run's settings; `flwr run` says only that it does.
UNKNOWN_KEY = re.compile(r"Key '[^']*' is not present[^\n]*")
#: The line of a SuperNode that is connected.
ONLINE = re.compile(r"SuperNode ID: (\d+)")
#: The refusal of an unknown key, and of a key believed to be connected already.
NOT_ACTIVATED = "[code: 2004]"
#: The reason why a program of Flower ends.
EXIT = re.compile(r"Exit Code: \d+\n(.*?)(?:\n\s*\n|For more information|\Z)", re.DOTALL)
#: A line of a log below the level of an error: "INFO :
#:     text", "2026-11-22T10:56:49.699Z INFO [uvicorn.error] text".
HARMLESS = re.compile(r"(?:\S+Z )?(?:DEBUG|INFO|WARN(?:ING)?)\b")


def identify_process(run_id: int, node_id: int = 1) -> None:
    """Set the run and node for which this process makes messages, as Flower's own
    programs do.

    Replaced by: a public way to make messages outside of them.
    """
    if TaskIdentity is not None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, node_id, 1


def run_client_program(app: ClientApp) -> None:
    """Run Flower's client program with ``app`` instead of the one that the run brings.

    Replaced by: an option of the SuperNode for an app of its own.
    """
    loader: Any = import_module(CLIENT_LOADER)
    loader.get_load_client_app_fn = lambda **_: lambda *_: app
    module, _, name = CLIENT_PROGRAM.partition(":")
    getattr(import_module(module), name)()


def number_message(message: Message, number: str = "") -> str:
    """Give a message an id, which only Flower's own grids do; return it. ``number``:
    that id; "": a new one.

    Replaced by: a public setter, or an id that a message has from the start.
    """
    message.metadata.__dict__["_message_id"] = number = number or uuid.uuid4().hex
    return number


def forwarded(
    message: Message, node_id: int, group: str, kind: str, content: RecordDict | None
) -> Message:
    """Return a message like ``message`` for one of the clients behind its node.

    Replaced by: a public constructor that takes the sender and the time of making.
    """
    sent = message.metadata
    own: Any = Metadata(
        run_id=sent.run_id,
        message_id="",
        src_node_id=sent.src_node_id,
        dst_node_id=node_id,
        reply_to_message_id="",
        group_id=group,
        created_at=sent.created_at,
        ttl=sent.ttl,
        message_type=kind,
    )
    made: Message = Message(content=content, metadata=own)  # type: ignore[call-overload]
    return made


def is_simulation(grid: Grid) -> bool:
    """Return whether a grid, or the one that it wraps, is that of Flower's simulation.

    Replaced by: a public name of the engine.
    """
    inner = getattr(grid, "grid", None)
    return hasattr(grid, "pull_interval") or (isinstance(inner, Grid) and is_simulation(inner))


def poll_every(grid: Grid, seconds: float) -> bool:
    """Let a simulation's grid look for replies every ``seconds``; return whether it is
    one.

    Replaced by: an option of the simulation.
    """
    if not hasattr(grid, "pull_interval"):
        return False
    grid.pull_interval = seconds
    return True

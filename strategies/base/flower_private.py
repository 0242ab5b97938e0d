"""All that this project uses of Flower beyond its public interface, in one place.

Flower may change each of these in any release. A test checks that no other module
imports a private name of Flower or depends on the wording of its messages. A comment
says what each is for and what would replace it.

The module is here because ``strategies`` and ``fedapps`` both use it; ``clients`` needs
no private name.
"""

import contextlib
import logging
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Set
from importlib import import_module
from typing import Any, Self

from flwr.app import Message, Metadata, RecordDict
from flwr.clientapp import ClientApp

# The codes of error replies. Replaced by: a public enumeration beside `flwr.app.Error`.
from flwr.common.constant import ErrorCode as ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

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
#: The line of a grid that leaves a reply out, since its content is not to be had.
LEFT_OUT = "Message %s objects unavailable: %s"
#: Why a SuperLink rejects a run's settings; `flwr run` says only that it does.
UNKNOWN_KEY = re.compile(r"Key '[^']*' is not present[^\n]*")
#: The line of a SuperNode that is connected.
ONLINE = re.compile(r"SuperNode ID: (\d+)")
#: A line after which a SuperNode may be running without ever connecting again.
CUT_OFF = "SSL/TLS handshake error detected"
#: The refusal of an unknown key, and of a key believed to be connected already.
NOT_ACTIVATED = "[code: 2004]"
#: The reason why a program of Flower ends.
EXIT = re.compile(r"Exit Code: \d+\n(.*?)(?:\n\s*\n|For more information|\Z)", re.DOTALL)
#: A line of a log below the level of an error ("INFO :      text",
#: "2026-11-22T10:56:49.699Z INFO [uvicorn.error] text"), or a request that a SuperLink
#: refused, for example a reply to a run that was stopped ("ERROR :
#: [/v1/fleet/push-messages][ApiError:2007] text").
HARMLESS = re.compile(
    r"(?:\S+Z )?(?:(?:DEBUG|INFO|WARN(?:ING)?)\b|ERROR\s*:\s+\[/\S+\]\[ApiError:\d+\])"
)


def identify_process(run_id: int, node_id: int = 1) -> None:
    """Set the run and node for which this process makes messages, as Flower's own
    programs do.

    Replaced by: a public way to make messages outside of them.
    """
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, node_id, 1


def at_exit(close: Callable[[], None]) -> None:
    """Call ``close`` when Flower ends this process, as `flwr stop` makes it do.

    Replaced by: an exception in the ServerApp, whose thread is waited for.
    """
    import_module("flwr.supercore.exit.exit_handler").add_exit_handler(close)


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

    Replaced by: `grid.run.primary_task_type`, once `flwr.simulation.run_simulation`
    does not call its runs those of a SuperLink.
    """
    inner = getattr(grid, "grid", None)
    return hasattr(grid, "pull_interval") or (isinstance(inner, Grid) and is_simulation(inner))


class LeftOut(logging.Handler):
    """Within this context, collects the ``numbers`` of the replies that a grid leaves
    out because their content is not on the SuperLink.

    Replaced by: an error reply, as it was before Flower 1.43.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.numbers: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line."""
        if record.msg == LEFT_OUT and isinstance(record.args, tuple):
            self.numbers.append(str(record.args[0]))

    def __enter__(self) -> Self:
        logging.getLogger("flwr").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("flwr").removeHandler(self)


class StoredMessages:
    """Lets the threads of a simulation wait for messages and replies, not for a clock.

    The simulation keeps both in this process. Its thread that hands messages out asks
    for each node in turn, and then sleeps 0.1 s. Here, the question for the first node
    waits for the next message, at most IDLE seconds: the thread must see the end of the
    simulation. Only the sleep after each handing out is left.

    Replaced by: a simulation that hands messages out as soon as they are stored.
    """

    IDLE = 1.0

    def __init__(self, state: Any) -> None:
        self._changed, self._batch = threading.Condition(), threading.Lock()
        self._undelivered, self._answered = 0, set[str]()
        self._first: int | None = None  # the node that is asked for first
        self._store, self._answer = state.store_message_ins, state.store_message_res
        self._get = state.get_message_ins
        state.store_message_ins, state.store_message_res = self._stored, self._replied
        state.get_message_ins = self._handed_out

    def _stored(self, message: Message) -> Any:
        number = self._store(message)
        with self._changed:
            self._undelivered += bool(number)
            self._changed.notify_all()
        return number

    def _replied(self, message: Message) -> Any:
        number = self._answer(message)
        with self._changed:
            self._answered.add(message.metadata.reply_to_message_id)
            self._changed.notify_all()
        return number

    def _handed_out(self, node_id: int, *args: Any, **more: Any) -> list[Message]:
        if self._first is None:
            self._first = node_id
        if node_id == self._first:
            with self._changed:
                self._changed.wait_for(lambda: self._undelivered, self.IDLE)
            with self._batch:  # until all messages of a phase are stored
                pass
        messages: list[Message] = self._get(node_id, *args, **more)
        with self._changed:
            self._undelivered = max(self._undelivered - len(messages), 0)
        return messages

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Hand out no message before all that are stored within this context."""
        with self._batch:
            with self._changed:
                self._answered.clear()
            yield

    def wait_for_replies(self, numbers: Set[str], seconds: float) -> None:
        """Wait until the messages of these ids have their replies, or ``seconds``."""
        with self._changed:
            self._changed.wait_for(lambda: numbers <= self._answered, seconds)


def stored_messages(grid: Grid) -> StoredMessages | None:
    """Return what waits for the messages of a simulation's grid; None for other grids,
    and for a Flower that stores messages in another way.
    """
    state: Any = getattr(grid, "state", None)
    names = ("store_message_ins", "store_message_res", "get_message_ins")
    if not is_simulation(grid) or not all(hasattr(state, name) for name in names):
        return None
    made = getattr(state.get_message_ins, "__self__", None)
    return made if isinstance(made, StoredMessages) else StoredMessages(state)

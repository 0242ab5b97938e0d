"""Faults that the sites get with the app (a copy of this file, which therefore imports
nothing of this folder): those of ``soak.py``, also of the inline engine's nodes, disk
and process, and clients that get lost in secure sums.
"""

import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedapps.algorithms.secure.wire import RECORD, unpacked
from fedapps.clients.base.adapter import client_id
from fedapps.engines.inline import InlineGrid
from fedapps.engines.node_app import answer_for_many
from fedapps.runs.guarded_app import Guarded
from fedapps.strategies.base.flower_private import ErrorCode

KINDS = ("client", "node", "late", "nan", "shape", "huge", "words", "weight", "metrics")
KINDS += ("policy", "duplicate", "disk", "restart", "command")
NO_LIMIT = resource.RLIM_INFINITY
FLOOD = 10**6  # numbers among the metrics of a reply


def fault(seed: int, number: int, clients: int) -> tuple[str, int]:
    """Return kind and client of the fault in a round, ("", -1) in odd ones; every kind
    occurs once per cycle, in a random order.
    """
    if number % 2 or not number:
        return "", -1
    block, place = divmod(number // 2 - 1, len(KINDS))
    kind = KINDS[np.random.default_rng([seed, block]).permutation(len(KINDS))[place]]
    return kind, int(np.random.default_rng([seed, block, place]).integers(clients))


# --- the faults of clients, in both engines -------------------------------------------


class Faulty(ClientApp):
    """A ClientApp whose training replies are spoilt."""

    def __init__(self, app: ClientApp) -> None:
        super().__init__()
        self.app = app

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer."""
        number, seed = round_of(message)
        kind, victim = fault(seed, number, int(str(context.node_config.get("num-partitions", 1))))
        mine = kind if context.node_config.get("partition-id") == victim else ""
        site = "store-dir" in context.node_config
        if mine == "client":
            if site:
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("the process of the client was killed")
        if mine == "words":
            return Message(Error(ErrorCode.UNKNOWN, "ActorDiedError: gone"), reply_to=message)
        if mine == "policy":
            return self.app(message, with_policy(context))
        reply = walk(message, context) if site and number else self.app(message, context)
        if mine in ("nan", "shape", "huge", "weight", "metrics"):
            spoil(reply.content, mine, np.random.default_rng([seed, number]))
        return reply


def with_policy(context: Context) -> Context:
    """Return the context of a site whose policy allows no method of the soak."""
    folder = context.node_config.get("store-dir") or os.environ["SOAK_WORK"]
    policy = Path(str(folder), "policy.toml")
    policy.write_text('methods = ["scaffold"]\n')
    config = {**context.node_config, "policy": str(policy)}
    return Context(context.run_id, context.node_id, config, context.state, context.run_config)


def walk(message: Message, context: Context) -> Message:
    """Answer a training message by a step that depends on client and round alone,
    without PyTorch: its import is most of a site's work.

    Means of such steps add up, so that a wrong one shows in the final model.
    """
    sent = next(iter(message.content.array_records.values()))
    client, number = int(str(context.node_config["partition-id"])), round_of(message)[0]
    arrays = {}
    for name, array in sent.items():
        values = array.numpy()
        steps = np.cos(number + np.arange(values.size) * (1 + client)).reshape(values.shape)
        arrays[name] = Array((values + 0.01 * steps).astype(values.dtype))
    metrics = MetricRecord({"num-examples": 10 + client, "loss": 1.0})
    return Message(
        RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message
    )


def spoil(content: RecordDict, kind: str, rng: np.random.Generator) -> None:
    """Change a training reply."""
    record = next(iter(content.array_records.values()))
    name = list(record)[rng.integers(len(record))]
    values = record[name].numpy().copy()
    if kind == "nan":
        values.flat[rng.integers(values.size)] = np.nan
    elif kind == "shape":
        values = values[..., :-1]
    elif kind == "huge":
        values.flat[rng.integers(values.size)] = 9e14  # below the largest number allowed
    elif kind == "metrics":
        next(iter(content.metric_records.values()))["history"] = [0.5] * FLOOD
    else:
        next(iter(content.metric_records.values()))["num-examples"] = 10**15
    record[name] = Array(values)


def round_of(message: Message) -> tuple[int, int]:
    """Return round and seed of a training message; round 0 for others."""
    if message.metadata.message_type != "train":
        return 0, 0
    config = next(iter(message.content.config_records.values()))
    return int(str(config["server-round"])), int(str(config["seed"]))


# --- clients that get lost in secure sums ---------------------------------------------

#: Where one is lost in session 0, 1, 2, ...: before it masks; before it has made its
#: shares; after it has masked; in unmasking. Rounds are sessions 1, 3, 4, 5, 7, ...:
#: where a reply is lost, the session that it should have prepared is given up.
PHASES = ("before", "offer", "after", "sign", "reveal")
#: The file in the run's folder with a line for each loss: session, phase, client.
LOSSES = "losses.jsonl"


def usual(phase: str, session: int, client: int, count: int) -> bool:
    """Return whether a client of ``count`` is lost in a phase of a session."""
    return phase == PHASES[session % len(PHASES)] and client == session % count


class Dropping(ClientApp):
    """``app``, which gives no answer where ``lost(phase, session, client, clients)``.
    Without secure sums the session is the round.
    """

    def __init__(self, app: ClientApp, lost: Callable[[str, int, int, int], bool] = usual) -> None:
        super().__init__()
        self.app, self.lost = app, lost

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message, or raise ``RuntimeError``."""
        metadata, content = message.metadata, message.content
        asked = unpacked(content[RECORD]) if RECORD in content else {}
        train = metadata.message_type.startswith("train")
        if not train and "session" not in asked:
            return self.app(message, context)
        number = asked["session"]["number"] if asked else int(metadata.group_id)
        phases = ("before", "after") if train else (asked["step"],)
        reply = None
        for phase in phases:
            reply = self.app(message, context) if phase == "after" else reply
            self._check(phase, number, context)
        return reply or self.app(message, context)

    def _check(self, phase: str, session: int, context: Context) -> None:
        client, config = int(str(client_id(context))), context.run_config
        if self.lost(phase, session, client, int(str(config["num-clients"]))):
            if config.get("out"):
                with Path(str(config["out"]), LOSSES).open("a") as file:
                    file.write(json.dumps([session, phase, client]) + "\n")
            raise RuntimeError(f"client {client} is lost: phase {phase} of session {session}")


def with_losses(lost: Callable[[str, int, int, int], bool] = usual) -> ClientApp:
    """Return the app that runs for every client, with losses."""
    # imported late: this module is imported by a copy of the app
    from fedapps.runs.client_app import clients, trained

    return answer_for_many(Guarded(Dropping(trained, lost)), clients)


def away(members: list[list[int]]) -> Callable[[str, int, int, int], bool]:
    """Return the losses of a plain run whose rounds have these members."""
    return lambda _, number, client, __: client not in members[number - 1]


def lines(path: Path) -> list[Any]:
    """Return what the lines of a file hold."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def add_losses(app: Path) -> Path:
    """Add losses to a copy of the app, and return it."""
    shutil.copy(__file__, app / "fedapps" / "runs" / "faults.py")
    path = app / "fedapps" / "runs" / "client_app.py"
    text = path.read_text()
    line = "app = answer_for_many("
    assert line in text
    added = "from fedapps.runs.faults import with_losses\n\napp = with_losses()\n"
    path.write_text(text[: text.index(line)] + added)
    return app


# --- inline ---------------------------------------------------------------------------


class Nodes(dict[int, Context]):
    """The contexts of nodes that come and go."""

    @property
    def nodes(self) -> list[int]:
        """The nodes that are there."""
        return list(self)

    def now(self, node: int) -> Context:
        """Return the context of a node."""
        return self[node]

    def keep(self, context: Context) -> None:
        """Keep a context."""
        self[context.node_id] = context


class FaultyGrid(InlineGrid):
    """The in-process grid with faults of nodes, process and disk; all nodes are asked
    who they are, as SuperNodes are.
    """

    def __init__(
        self, app: ClientApp, num_clients: int, run_config: Any = None, *, numbered: bool
    ) -> None:
        super().__init__(Faulty(app), num_clients, run_config)
        self.contexts: Any = Nodes(self.contexts)
        self.late: list[Message] = []
        self.double = 0

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Answer the messages, with the fault of the round."""
        messages = list(messages)
        number, seed = round_of(messages[0])
        if not number:
            return super().send_and_receive(messages, timeout=timeout)
        file_limit(NO_LIMIT)
        late, self.late = self.late, []
        kind, victim = fault(seed, number, len(messages))
        rng = np.random.default_rng([seed, number, 1])
        self.contexts.pop(self.double, None)  # of the round before
        if kind == "disk" and once(number):
            size = (
                Path(str(next(iter(self.contexts.values())).run_config["out"]), "rounds.jsonl")
                .stat()
                .st_size
                if number > 1
                else 0
            )
            file_limit(int(rng.choice([0, 20, 300, 2000, size + 1, size + 100])))
        if kind == "restart" and once(number):
            kill_before(int(rng.integers(25)))
        if kind == "command":
            second_command(str(next(iter(self.contexts.values())).run_config["out"]))
        replies = super().send_and_receive(messages, timeout=timeout)
        node = messages[victim].metadata.dst_node_id if kind else 0
        own = [reply for reply in replies if reply.metadata.src_node_id == node]
        if kind in ("late", "node"):
            replies = [reply for reply in replies if reply not in own]
            self.late = own if kind == "late" else []
        if kind == "node":
            replies.append(
                Message(
                    Error(ErrorCode.NODE_UNAVAILABLE, "Node Unavailable"), reply_to=messages[victim]
                )
            )
            self._introduce(node, 10**6 + number)
            del self.contexts[node]
        if kind == "duplicate":
            self.double = 10**6 + number
            self._introduce(node, self.double)
        return [*late, *replies]

    def _introduce(self, node: int, new: int) -> None:
        old = self.contexts[node]
        self.contexts[new] = Context(old.run_id, new, old.node_config, RecordDict(), old.run_config)


def once(number: int) -> bool:
    """Return whether the fault of this round has not happened, and note that it has: a
    repeated round is spared.
    """
    path = Path(os.environ["SOAK_WORK"], f"once-{number}")
    if path.exists():
        return False
    path.touch()
    return True


def second_command(out: str) -> None:
    """Resume the run that goes on in this process, from another one. Raises
    ``RuntimeError`` unless that is refused.
    """
    from fedapps.commands.parser import main

    process = multiprocessing.get_context("fork").Process(
        target=lambda: sys.exit(main(["run", "--resume", "--engine", "inline", "--out", out]))
    )
    process.start()
    process.join()
    if process.exitcode != 2:
        raise RuntimeError(f"a second command ended with {process.exitcode}")


def file_limit(size: int, process: int = 0) -> None:
    """Let no file grow beyond ``size`` bytes."""
    resource.prlimit(process, resource.RLIMIT_FSIZE, (size, NO_LIMIT))


def kill_before(operations: int) -> None:
    """Kill this process at its next file operation but ``operations``."""
    left = [operations]

    def count(event: str, _: object) -> None:
        if event in (
            "open",
            "os.rename",
            "os.mkdir",
            "os.remove",
            "os.rmdir",
            "os.truncate",
            "shutil.rmtree",
        ):
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)

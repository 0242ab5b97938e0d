"""A Grid that runs a ClientApp in worker processes of this machine, without Ray and
SuperLink. Numbers are those of ``InlineGrid``, to the last bit, for any number of
workers.

The model of a round is once in memory that all workers read, and replies come back in
shared memory (``shared_memory``); pipes carry the small rest. The state of a client
stays here and travels with its messages, so any worker can run any client, and a worker
that dies takes no state with it. The longest clients start first, by the number of
samples that their last replies reported; a free worker takes the next ones, preferably
clients that it has run before, whose samples it keeps as tensors.

Workers are processes of ``multiprocessing``. On Linux they are forked: that takes some
milliseconds, and they share the loaded data and libraries with this process. A fork
copies only the thread that asks for it, together with locks that other threads hold.
So where other threads run (a notebook, PyTorch's for gradients), and on macOS, whose
system libraries do not support it, workers are started as new programs. That takes some
seconds, and each loads the data itself.

A worker process (:func:`serve`) runs the ClientApp on the messages that come through
its pipe.
"""

import itertools
import logging
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import connection, get_context
from typing import Any, Self

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedapps.clients.base.together import together
from fedapps.engines.inline import InlineGrid, answer, failed
from fedapps.engines.processes import Cores, without_main
from fedapps.engines.shared_memory import Place, Segment, pack, unpack
from fedapps.strategies.base.flower_private import ErrorCode, number_message
from fedapps.strategies.base.messages import content_bytes

Record = ArrayRecord | ConfigRecord | MetricRecord
#: A record in the memory that all workers read: the place of its pickle, and those of
#: its arrays.
Shared = tuple[Place, list[Place]]
#: The records of a content by name. Messages that share their content share this.
Layout = list[tuple[str, Shared]]
#: A message without its node: id, type, group, seconds to live, content.
Question = tuple[str, str, str, float, Layout]
#: A node, its state, and the messages to it.
Job = tuple[int, RecordDict | None, list[Question]]
#: The content of a reply, or code and reason of an error.
Answer = tuple[RecordDict | None, tuple[int, str | None] | None]
#: Seconds that workers get to end by themselves.
PATIENCE = 5.0


@dataclass(frozen=True)
class Program:
    """What a worker needs to run clients. A worker that is forked gets the grid's app,
    any other one loads it.
    """

    load: Callable[[], ClientApp]
    num_clients: int
    run_config: Mapping[str, Any]
    run_id: int
    level: int


def serve(
    program: Program,
    pipe: Any,
    life: Any,
    inherited: Sequence[Any],
    board: Segment,
    up: Segment,
) -> None:
    """Answer messages in a worker process, until its parent closes ``life`` or ends."""
    for end in inherited:
        end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides after Ctrl-C
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    threading.Thread(target=_end_with, args=(life,), daemon=True).start()
    grid = InlineGrid(program.load(), program.num_clients, program.run_config, program.run_id)
    logs = _collected_logs(program.level)
    records: dict[Place, Record] = {}
    current = 0
    while True:
        try:
            phase, packed = pipe.recv()
        except (EOFError, OSError):
            return
        if phase != current:
            records.clear()
            current = phase
        up.clear()
        jobs: list[Job] = unpack(packed, board)
        contents = {
            id(layout): _content(layout, records, board)
            for _, _, questions in jobs
            for *_, layout in questions
        }
        answers = together((job[0], partial(_answers, grid, job, contents)) for job in jobs)
        pipe.send((pack(answers, up), logs.copy()))
        logs.clear()


def _content(layout: Layout, records: dict[Place, Record], board: Segment) -> RecordDict:
    content = RecordDict()
    for name, (place, places) in layout:
        if place not in records:
            records[place] = unpack((board.get(place), places), board)
        content[name] = records[place]
    return content


def _answers(
    grid: InlineGrid, job: Job, contents: Mapping[int, RecordDict]
) -> tuple[list[Answer], dict[str, Record | None] | None]:
    """Return the answers of a node, and its new state; ``None`` in place of a record
    of the state that has not changed, or of a state that is and was empty.
    """
    node, sent, questions = job
    state = sent or RecordDict()
    before = {
        name: (record, list(record.values()))
        for name, record in state.items()
        if isinstance(record, ArrayRecord)
    }
    answers: list[Answer] = []
    for number, kind, group, ttl, layout in questions:
        message = Message(contents[id(layout)], node, kind, ttl=ttl, group_id=group)
        number_message(message, number)
        context = grid.contexts.made(node, RecordDict(dict(state)))
        reply, succeeded = answer(grid.client_app, message, context)
        state = context.state if succeeded else state
        error = reply.error if reply.has_error() else None
        answers.append((None, (error.code, error.reason)) if error else (reply.content, None))
    if not state and not sent:
        return answers, None
    return answers, {
        name: None if name in before and _same(before[name], record) else record
        for name, record in state.items()
    }


def _same(before: tuple[Record, list[Any]], record: Record) -> bool:
    return record is before[0] and all(
        new is old for new, old in itertools.zip_longest(record.values(), before[1])
    )


def _end_with(life: Any) -> None:
    """End this process when the parent closes its end of ``life``, or ends."""
    with suppress(EOFError, OSError):
        life.recv_bytes()
    # In the main thread: what it has in hand, such as temporary files, is put away.
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(PATIENCE / 2)
    os._exit(1)


def _collected_logs(level: int) -> list[logging.LogRecord]:
    """Return the list into which this process logs from now on: the parent writes it
    where it writes its own log.
    """
    records: list[logging.LogRecord] = []

    class Collected(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            record.msg, record.args = record.getMessage(), None
            record.exc_info = record.exc_text = record.stack_info = None
            records.append(record)

    flower = logging.getLogger("flwr")
    flower.handlers, flower.propagate = [], True
    flower.setLevel(level)
    logging.getLogger().handlers = [Collected()]
    return records


#: Bytes of the messages that a worker gets at once; it gets at least one message.
MOST_BYTES = 32 * 2**20


@dataclass
class Worker:
    """A worker process, and this process's end of its pipe. ``up``: where its replies
    are; ``nodes``: those whose messages it works on.
    """

    process: Any
    pipe: Any
    up: Segment
    nodes: list[int] = field(default_factory=list)


class WorkerGrid(InlineGrid):
    """An ``InlineGrid`` with ``workers`` worker processes. It is a context manager:
    leaving it ends them.

    ``load``: returns the app. ``method``: how processes start, "fork" or "spawn"; by
    default as described above. ``cores``: those that it shares with other runs, of
    which it has one; in each phase it uses as many more as are free.
    """

    def __init__(
        self,
        load: Callable[[], ClientApp],
        num_clients: int,
        run_config: Mapping[str, Any] | None = None,
        run_id: int = 1,
        *,
        numbered: bool = False,
        workers: int = 2,
        method: str | None = None,
        cores: Cores | None = None,
    ) -> None:
        super().__init__(load(), num_clients, run_config, run_id, numbered=numbered)
        self.load, self.workers, self.method, self.cores = load, workers, method, cores
        self.board = Segment()
        self.pool: list[Worker] = []
        self._life: tuple[Any, Any] | None = None  # workers end when its second end is closed
        self._phase = 0
        self._samples: dict[int, float] = {}
        self._home: dict[int, Worker] = {}  # node -> the worker that ran it last

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- processes --------------------------------------------------------------------

    def start(self, number: int) -> None:
        """Let at least this number of workers run."""
        for place, worker in enumerate(self.pool):
            if not worker.process.is_alive():
                self.pool[place] = self._replaced(worker)
        while len(self.pool) < number:
            self.pool.append(self._started())

    def _started(self) -> Worker:
        self.method = self.method or usual_method()
        processes: Any = get_context(self.method)
        self._life = self._life or processes.Pipe(duplex=False)
        forked = self.method == "fork"
        ours, theirs = processes.Pipe()
        up = Segment()
        contexts = self.contexts
        program = Program(
            (lambda: self.client_app) if forked else self.load,
            len(contexts),
            contexts.run_config,
            contexts.run_id,
            logging.getLogger("flwr").level,
        )
        # A forked process has the ends that belong to this one, too.
        inherited = [self._life[1], ours] if forked else []
        process = processes.Process(
            target=serve,
            args=(program, theirs, self._life[0], inherited, self.board, up),
            name="fedapps worker",
        )
        # a forked process imports nothing, and would never see its main program again
        with nullcontext() if forked else without_main():
            process.start()
        theirs.close()
        return Worker(process, ours, up)

    def _replaced(self, dead: Worker) -> Worker:
        dead.pipe.close()
        dead.up.close()
        dead.process.join()
        return self._started()

    def close(self) -> None:
        """End all workers; those that work on a message leave it."""
        pool, self.pool = self.pool, []
        if self._life:
            for end in self._life:
                end.close()
            self._life = None
        for worker in pool:
            worker.process.join(PATIENCE)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.pipe.close()
            worker.up.close()

    # --- messages ---------------------------------------------------------------------

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Run the ClientApp on all messages; return the message ids."""
        asked = list(messages)
        more = min(self.workers, len(asked)) - 1
        if self.cores:
            more = self.cores.borrow(more)
        try:
            if more < 1:
                return super().push_messages(asked)
            self.start(more + 1)
            return self._run_in(self.pool[: more + 1], asked)
        except BaseException:
            self.close()  # workers may still work on messages of this phase
            raise
        finally:
            if self.cores:
                self.cores.give_back(more)

    def _run_in(self, pool: Sequence[Worker], asked: Sequence[Message]) -> list[str]:
        self._phase += 1
        self.board.clear()
        # by the ids of contents and records, which the messages keep alive
        shared: dict[int, Any] = {}
        ids = [number_message(message) for message in asked]
        by_node: dict[int, list[Message]] = {}  # one after the other, for their state
        for message in asked:
            by_node.setdefault(message.metadata.dst_node_id, []).append(message)
        waiting = sorted(by_node, key=lambda node: -self._samples.get(node, 0.0))
        most = _most(asked, len(pool))
        while waiting or any(worker.nodes for worker in pool):
            for worker in pool:
                if waiting and not worker.nodes:
                    share = min(most, -(-len(waiting) // (4 * len(pool))))
                    worker.nodes = self._taken(worker, waiting, share)
                    jobs = [self._job(node, by_node[node], shared) for node in worker.nodes]
                    with suppress(OSError):  # dead: seen when its answer is read
                        worker.pipe.send((self._phase, pack(jobs, self.board)))
            for pipe in connection.wait([worker.pipe for worker in pool if worker.nodes]):
                worker = next(worker for worker in pool if worker.pipe is pipe)
                nodes, worker.nodes = worker.nodes, []
                self._read(worker, {node: by_node[node] for node in nodes})
            pool = self.pool[: len(pool)]  # a dead one has been replaced
        return ids

    def _taken(self, worker: Worker, waiting: list[int], number: int) -> list[int]:
        """Take ``number`` nodes out of ``waiting``, of about the longest: first those
        that the worker has run before.
        """
        window = waiting[: 2 * number]
        chosen = sorted(window, key=lambda node: self._home.get(node) is not worker)[:number]
        left = set(window).difference(chosen)
        waiting[: 2 * number] = [node for node in window if node in left]
        return chosen

    def _job(self, node: int, messages: Sequence[Message], shared: dict[int, Any]) -> Job:
        """Return messages to a node as plain values, with its state; put their records
        into the shared memory. ``shared``: what is there.
        """
        questions: list[Question] = []
        for message in messages:
            sent, content = message.metadata, message.content
            if id(content) not in shared:
                shared[id(content)] = [
                    (name, self._shared(record, shared)) for name, record in content.items()
                ]
            layout = shared[id(content)]
            questions.append((sent.message_id, sent.message_type, sent.group_id, sent.ttl, layout))
        return node, self.contexts.state(node) or None, questions

    def _shared(self, record: Record, shared: dict[int, Any]) -> Shared:
        """Return where a record is in the shared memory; write it there first."""
        if id(record) not in shared:
            stream, places = pack(record, self.board)
            shared[id(record)] = self.board.put(stream), places
        place: Shared = shared[id(record)]
        return place

    def _read(self, worker: Worker, asked: Mapping[int, Sequence[Message]]) -> None:
        """Read a worker's answers to messages by node, or that it died."""
        try:
            packed, logs = worker.pipe.recv()
        except (EOFError, OSError):
            self.pool[self.pool.index(worker)] = self._replaced(worker)
            reason = death(worker.process)
            for message in itertools.chain.from_iterable(asked.values()):
                reply = failed(message, ErrorCode.CLIENT_APP_CRASHED, reason)
                self._replies[message.metadata.message_id] = reply
            return
        for record in logs:
            logging.getLogger(record.name).handle(record)
        for (node, messages), (answers, state) in zip(
            asked.items(), unpack(packed, worker.up), strict=True
        ):
            self._home[node] = worker
            for message, (content, error) in zip(messages, answers, strict=True):
                if error:
                    reply = failed(message, *error)
                else:
                    reply = Message(content, reply_to=message)
                    self._note_samples(node, content)
                self._replies[message.metadata.message_id] = reply
            if state is not None:
                kept = self.contexts.state(node)
                new = {name: kept[name] if part is None else part for name, part in state.items()}
                self.contexts.keep(self.contexts.made(node, RecordDict(new)))

    def _note_samples(self, node: int, content: RecordDict) -> None:
        for record in content.values():
            if isinstance(record, MetricRecord):
                samples = record.get("num-examples", 0)
                if isinstance(samples, int | float) and math.isfinite(samples):
                    self._samples[node] = samples


def usual_method() -> str:
    """Return how worker processes start: see the module docstring."""
    if sys.platform != "linux" or threading.active_count() > 1:
        return "spawn"
    return "fork" if forks_train() else "spawn"


def forks_train() -> bool:
    """Return whether PyTorch computes gradients in a process that is forked from this
    one: not once it has threads for them here, as with a visible GPU or after it has
    compiled. It does not say so before.
    """
    if not (torch := sys.modules.get("torch")):
        return True
    if not (child := os.fork()):
        with suppress(BaseException):
            torch.ones(1, requires_grad=True).sum().backward()
            os._exit(0)
        os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def death(process: Any) -> str:
    """Return why a client has no reply, whose worker has died."""
    code = process.exitcode
    how = f"ended with status {code}"
    if code < 0:
        with suppress(ValueError):
            how = f"was killed by {signal.Signals(-code).name}"
    return f"the worker process of this client {how}. If memory is short, choose fewer --workers"


def _most(asked: Sequence[Message], workers: int) -> int:
    """Return the largest number of messages that a worker gets at once."""
    bytes_each = content_bytes(asked[0].content) if asked else 0
    return max(1, min(MOST_BYTES // max(1, bytes_each), -(-len(asked) // (4 * workers))))

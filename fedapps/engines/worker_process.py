"""What a worker process of the inline engine does (``workers``): it runs the ClientApp
on the messages that come through its pipe.
"""

import itertools
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedapps.clients.base.together import together
from fedapps.engines.inline import InlineGrid, answer
from fedapps.engines.shared_memory import Place, Segment, pack, unpack
from fedapps.strategies.base.flower_private import number_message

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

"""Clients of one process that answer their messages in turns, so that they can take
their local steps together (``train.compile``).

Whoever answers for clients in this process (``inline``, ``node_app``) hands all
messages over at once. Those that ask for steps in blocks are answered by so many
clients at a time as a block has, in threads that take turns; all others one after the
other.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

from flwr.app import RecordDict

from algorithms.common.turns import in_turns

A = TypeVar("A")
R = TypeVar("R")


def answers(
    asked: Iterable[A],
    answer: Callable[[A], R],
    told: Callable[[A], tuple[object, RecordDict | None]],
) -> Iterator[R]:
    """Yield ``answer`` of all that are asked, in their order. ``told``: whom they are
    for, and the content of the message.
    """
    group: list[A] = []
    inside: set[object] = set()
    most = 1

    def taken() -> list[R]:
        found = (
            in_turns([partial(answer, one) for one in group])
            if len(group) > 1
            else [answer(one) for one in group]
        )
        group.clear()
        inside.clear()
        return found

    for one in asked:
        client, content = told(one)
        size = block_size(content)
        # a client's second message finds what the first left
        if len(group) >= most or size != most or client in inside:
            yield from taken()
        most = size
        group.append(one)
        inside.add(client)
    yield from taken()


def block_size(content: RecordDict | None) -> int:
    """Return how many clients may answer such a message in turns: 1, unless it asks for
    steps that are taken in blocks.
    """
    config = content.get("config") if content else None
    if not config or not (
        config.get("compile") == "blocks" or (config.get("compile") == "on" and _gpu())
    ):
        return 1
    size = config.get("block")
    return size if isinstance(size, int) and size > 0 else 1


def _gpu() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_available())

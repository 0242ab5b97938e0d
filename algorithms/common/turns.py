"""Tasks that take turns, each in a thread of its own, and can meet: what several of
them ask for is then done for all at once.

    for outcome in in_turns([lambda: client.fit(...), ...]):
        # one runs at a time, until it is done or meets ...
    meet("key", request, serve)
        # in a task: returns what ``serve`` finds for its request

One task runs at any time, so that tasks may share what they do not leave half done when
they meet. What a task works in until after it has met must be its own: ``seat()`` tells
tasks that take turns apart.
"""

import contextvars
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
#: Requests -> for each of them what it is answered, or the exception that its task
#: shall raise.
Serve = Callable[[list[Any]], Sequence[Any]]
_here = threading.local()


def seat() -> int:
    """Return the number of the running task among those that take turns with it, from
    0; 0 where none do.
    """
    task: _Task | None = getattr(_here, "task", None)
    return task.number if task else 0


def meet(key: Hashable, request: Any, serve: Serve) -> Any:
    """Wait until the other tasks are done or meet, too; return what ``serve`` finds for
    this request among those of the same key.

    Where no tasks take turns nothing is waited for. Raises the exception that ``serve``
    has for the request.
    """
    task: _Task | None = getattr(_here, "task", None)
    found = task.wait(key, request, serve) if task else _served(serve, [request])[0]
    if isinstance(found, BaseException):
        raise found
    return found


def in_turns(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """Run the tasks; return what they return. Raises what the first of them raises."""
    running = [_Task(number, call) for number, call in enumerate(tasks)]
    try:
        for task in running:
            task.go()
        while waiting := [task for task in running if task.meeting]:
            for together in _by_key(waiting):
                answers = _served(together[0].serve, [task.request for task in together])
                for task, answer in zip(together, answers, strict=True):
                    task.answer = answer
            for task in waiting:
                task.go()
    finally:
        for task in running:
            task.leave()
    for task in running:
        if task.error:
            raise task.error
    return [task.result for task in running]


def _by_key(tasks: "list[_Task]") -> "Iterator[list[_Task]]":
    found: dict[Hashable, list[_Task]] = {}
    for task in tasks:
        found.setdefault(task.key, []).append(task)
    yield from found.values()


def _served(serve: Serve, requests: list[Any]) -> Sequence[Any]:
    try:
        return serve(requests)
    except Exception as error:  # then it is nobody's in particular
        return [error] * len(requests)


class Left(BaseException):
    """Ends a task that waits while whoever ran the tasks has gone on; no error of the
    task, which must not catch it.
    """


class _Task:
    """A task, its thread, and where it has got to."""

    def __init__(self, number: int, call: Callable[[], Any]) -> None:
        self.number, self.call = number, call
        self.meeting = self.left = False
        self.key: Hashable = None
        self.request: Any = None
        self.serve: Serve = list
        self.answer: Any = None
        self.result: Any = None
        self.error: BaseException | None = None
        self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)
        context = contextvars.copy_context()
        self.thread = threading.Thread(
            target=context.run, args=(self._run,), daemon=True, name=f"task {number}"
        )

    def go(self) -> None:
        """Let the task run until it is done or meets."""
        self.meeting = False
        if self.thread.ident is None:
            self.thread.start()
        else:
            self._turn.release()
        self._back.acquire()

    def leave(self) -> None:
        """End the task if it waits; one that has ended is not touched."""
        self.left = True
        self._turn.release()

    def wait(self, key: Hashable, request: Any, serve: Serve) -> Any:
        """In the task's thread: give the turn back, and return the answer when it is
        this task's turn again.
        """
        self.key, self.request, self.serve, self.meeting = key, request, serve, True
        self._back.release()
        self._turn.acquire()
        if self.left:
            raise Left
        self.request, answer, self.answer = None, self.answer, None
        return answer

    def _run(self) -> None:
        _here.task = self
        try:
            self.result = self.call()
        except BaseException as error:  # raised again where the tasks were run
            self.error = error
        finally:
            self._back.release()

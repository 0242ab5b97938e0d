"""Tasks that take turns: one at a time, in their order, together where they meet;
errors are a task's own.
"""

import threading

import pytest

from algorithms.common.turns import in_turns, meet, seat


def summed(requests):
    return [(number, sum(requests)) for number in requests]


def test_tasks_run_one_at_a_time_and_meet():
    seen, running = [], []

    def task(number):
        assert not running
        running.append(number)
        seen.append(("begin", number, seat()))
        running.remove(number)
        found = meet("sum", number, summed)
        assert not running
        seen.append(("end", number, seat()))
        return found

    assert in_turns([lambda n=n: task(n) for n in (10, 20, 30)]) == [(10, 60), (20, 60), (30, 60)]
    assert seen == [(when, n, i) for when in ("begin", "end") for i, n in enumerate((10, 20, 30))]
    assert threading.active_count() == 1 or not [
        t for t in threading.enumerate() if t.name.startswith("task")
    ]


def test_only_those_of_a_key_are_served_together_and_nobody_waits_for_those_that_are_done():
    served = []

    def serve(requests):
        served.append(sorted(requests))
        return requests

    def twice(number):
        return meet(number % 2, number, serve), meet("again", -number, serve)

    tasks = [lambda: twice(1), lambda: "no steps", lambda: twice(2), lambda: twice(3)]
    assert in_turns(tasks) == [(1, -1), "no steps", (2, -2), (3, -3)]
    assert served == [[1, 3], [2], [-3, -2, -1]]


def test_errors_are_a_tasks_own():
    def serve(requests):
        return [ValueError("this one") if request == 1 else request for request in requests]

    def task(number):
        try:
            return meet("key", number, serve)
        except ValueError as error:
            return str(error)

    assert in_turns([lambda n=n: task(n) for n in range(3)]) == [0, "this one", 2]


def test_what_nobody_can_serve_fails_for_all():
    def serve(requests):
        raise OSError("no device")

    def task():
        with pytest.raises(OSError, match="no device"):
            meet("key", None, serve)
        return "caught"

    assert in_turns([task, task]) == ["caught"] * 2


def test_an_error_of_a_task_reaches_whoever_runs_them_when_the_others_are_done():
    done = []

    def fails():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        in_turns([fails, lambda: done.append(meet("key", 1, list))])
    assert done == [1]


def test_without_turns_nobody_is_waited_for():
    assert seat() == 0
    assert meet("key", 5, summed) == (5, 5)
    with pytest.raises(ValueError, match="alone"):
        meet("key", 5, lambda requests: [ValueError("alone")])


def test_who_waits_when_the_run_ends_is_let_go():
    """Served tasks would wait for ever if the server is interrupted: they end, and run
    what they have to clean up.
    """
    cleaned = threading.Event()

    def serve(requests):
        raise KeyboardInterrupt

    def task():
        try:
            meet("key", 1, serve)
        finally:
            cleaned.set()

    with pytest.raises(KeyboardInterrupt):
        in_turns([task])
    assert cleaned.wait(10)

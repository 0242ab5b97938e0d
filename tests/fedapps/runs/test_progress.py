"""The progress display: when it reads, which lines it prints, and that it restores the
terminal.
"""

import contextlib
import io
import json
from types import SimpleNamespace

import pytest
from rich.console import Console

from fedapps.records.files import append_text, write_text
from fedapps.records.rounds import RoundReader
from fedapps.runs.progress import Progress
from tests.helpers import lacking


def add(file, number, accuracy=None, failures=(), loss=0.5, seconds=2.0):
    """Let a rounds.jsonl grow by a round."""
    record = {
        "round": number,
        "train": {"loss": loss},
        "seconds": seconds,
        "failures": list(failures),
    }
    if accuracy is not None:
        record["evaluate"] = {"accuracy-mean": accuracy}
    append_text(file, json.dumps(record) + "\n")


@pytest.fixture
def rounds(tmp_path):
    return tmp_path / "rounds.jsonl"


@pytest.fixture
def plain():
    console = Console(file=io.StringIO(), width=60, force_terminal=False)
    console.lines = lambda: console.file.getvalue().splitlines()
    return console


def test_plain_lines(rounds, plain):
    clock = SimpleNamespace(now=100.0)
    with Progress(100, "fedavg", plain, lambda: clock.now) as progress:
        progress.note("starting Ray")
        progress.poll(rounds.parent)
        assert progress.done == 0
        for number in range(1, 9):  # 0.1 s apart: nothing to say within two seconds
            clock.now += 0.1
            add(rounds, number)
            progress.poll(rounds.parent)
            assert progress.done == number
        clock.now += 2
        add(rounds, 9, accuracy=0.5, seconds=3.0)
        add(rounds, 10)
        progress.poll(rounds.parent)
        progress.poll(rounds.parent)
    assert plain.lines() == [
        "fedavg: starting Ray",
        "fedavg: round 1/100  loss 0.500  2.00 s/round  ETA 3 min 18 s",
        # mean of the last ten: (9 * 2 + 3) / 10 = 2.1 s; 90 rounds to go = 189 s
        "fedavg: round 10/100  loss 0.500  accuracy 50.0 %  2.10 s/round  ETA 3 min 09 s",
    ]


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_the_last_round_is_always_printed(error, rounds, plain):
    with (
        pytest.raises(error) if error else contextlib.nullcontext(),
        Progress(3, "m", plain, lambda: 100.0) as progress,
    ):
        for number in (1, 2) if error else (1, 2, 3):
            add(rounds, number, seconds=0.01)
            progress.poll(rounds.parent)
        if error:
            raise error
    last = "m: round 2/3  loss 0.500  10 ms/round  ETA 10 ms"
    assert plain.lines() == [
        "m: round 1/3  loss 0.500  10 ms/round  ETA 20 ms",
        last if error else "m: round 3/3  loss 0.500  10 ms/round",
    ]


def test_torn_line_waits_for_its_end(rounds):
    reader = RoundReader()
    rounds.write_text('{"round": 1}\n{"rou')
    assert [r["round"] for r in reader.read(rounds)] == [1]
    assert reader.read(rounds) == []
    append_text(rounds, 'nd": 2}\n{"round": 3}\n')
    assert [r["round"] for r in reader.read(rounds)] == [2, 3]
    assert reader.read(rounds) == []


def test_missing_file_and_invalid_lines(rounds):
    reader = RoundReader()
    assert reader.read(rounds) == []
    rounds.write_bytes(b'\n[1]\nnope\n{"round": true}\n\xff\xfe\n{"round": 4}\n')
    assert [r["round"] for r in reader.read(rounds)] == [4]


def test_rewritten_file_is_read_again(rounds, plain):
    """--resume drops the rounds after the checkpoint; their failures must not count
    twice.
    """
    failure = {"client": 4, "reason": "boom"}
    with Progress(9, "m", plain, lambda: 100.0) as progress:
        for number in (1, 2, 3):
            add(rounds, number, failures=[failure])
        progress.poll(rounds.parent)
        assert (progress.done, progress.failures) == (3, 3)
        write_text(rounds, "".join(rounds.read_text().splitlines(keepends=True)[:2]))
        progress.poll(rounds.parent)
        assert (progress.done, progress.failures) == (2, 2)
        add(rounds, 3)
        progress.poll(rounds.parent)
        assert (progress.done, progress.failures) == (3, 2)


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (
            {"seconds": 2.0, "failures": [{"client": 1, "reason": "old"}], "train": {"loss": 0.5}},
            "loss 0.500  2.00 s/round  ETA 6.0 s  1 failure",
        ),
        ({"evaluate": {"accuracy-mean": 0.25}}, "accuracy 25.0 %"),
        ({"evaluate": {"psnr-mean": 21.5}}, "psnr-mean 21.5"),
    ],
)
def test_the_rounds_of_a_resumed_run_count_as_done(record, line, rounds, plain):
    rounds.write_text(json.dumps({"round": 5, **record}) + "\n")
    with Progress(8, "m", plain, lambda: 100.0) as progress:
        progress.poll(rounds.parent)
    assert plain.lines() == [f"m: round 5/8  {line}"]


def test_failures_are_printed_with_client_and_reason_up_to_a_limit(rounds, plain):
    with Progress(50, "m", plain, lambda: 100.0) as progress:
        progress.poll(rounds.parent)
        for number in range(1, 8):
            add(rounds, number, failures=[{"client": 12, "reason": "[red]x\n\x1b[2Jy"}])
            progress.poll(rounds.parent)
    skipped = [line for line in plain.lines() if "skipped" in line]
    assert skipped == [f"Round {n}: skipped client 12: [red]x [2Jy" for n in (1, 2, 3)]
    assert plain.lines()[-1].endswith("7 failures")


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, ValueError])
def test_terminal_is_restored(rounds, error):
    console = Console(
        file=io.StringIO(),
        width=100,
        force_terminal=True,
        force_interactive=True,
        color_system=None,
    )
    progress = Progress(4, "[m]", console, lambda: 100.0)
    with pytest.raises(error) if error else contextlib.nullcontext(), progress:
        progress.note("starting Ray")
        add(rounds, 1, accuracy=0.5)
        progress.poll(rounds.parent)
        if error:
            raise error
    text = console.file.getvalue()
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l") >= 0
    assert not lacking(text, "[m]", "1/4", "loss 0.500  accuracy 50.0 %  2.00 s/round  ETA 6.0 s")

"""The progress display: when it reads, which lines it prints, and that it restores the
terminal.
"""

import contextlib
import io
import json
from types import SimpleNamespace

import pytest
from rich.console import Console

from fedapps import json_log
from fedapps.records.files import write_text
from fedapps.records.rounds import RoundReader
from fedapps.runs.progress import Progress


class Run:
    """A rounds.jsonl that grows."""

    def __init__(self, path):
        self.path = path
        self.file = path / "rounds.jsonl"

    def add(self, number, accuracy=None, failures=(), loss=0.5, seconds=2.0):
        record = {
            "round": number,
            "train": {"loss": loss},
            "seconds": seconds,
            "failures": list(failures),
        }
        if accuracy is not None:
            record["evaluate"] = {"accuracy-mean": accuracy}
        with self.file.open("a") as file:
            file.write(json.dumps(record) + "\n")


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


@pytest.fixture
def plain():
    console = Console(file=io.StringIO(), width=60, force_terminal=False)
    return console, lambda: console.file.getvalue().splitlines()


def test_plain_lines(run, plain):
    console, lines = plain
    clock = SimpleNamespace(now=100.0)
    with Progress(100, "fedavg", console, lambda: clock.now) as progress:
        progress.note("starting Ray")
        progress.poll(run.path)
        assert progress.done == 0
        for number in range(1, 9):  # 0.1 s apart: nothing to say within two seconds
            clock.now += 0.1
            run.add(number)
            progress.poll(run.path)
            assert progress.done == number
        clock.now += 2
        run.add(9, accuracy=0.5, seconds=3.0)
        run.add(10)
        progress.poll(run.path)
        progress.poll(run.path)
    assert lines() == [
        "fedavg: starting Ray",
        "fedavg: round 1/100  loss 0.500  2.00 s/round  ETA 3 min 18 s",
        # mean of the last ten: (9 * 2 + 3) / 10 = 2.1 s; 90 rounds to go = 189 s
        "fedavg: round 10/100  loss 0.500  accuracy 50.0 %  2.10 s/round  ETA 3 min 09 s",
    ]


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_the_last_round_is_always_printed(error, run, plain):
    console, lines = plain
    with (
        pytest.raises(error) if error else contextlib.nullcontext(),
        Progress(3, "m", console, lambda: 100.0) as progress,
    ):
        for number in (1, 2) if error else (1, 2, 3):
            run.add(number, seconds=0.01)
            progress.poll(run.path)
        if error:
            raise error
    last = "m: round 2/3  loss 0.500  10 ms/round  ETA 10 ms"
    assert lines() == [
        "m: round 1/3  loss 0.500  10 ms/round  ETA 20 ms",
        last if error else "m: round 3/3  loss 0.500  10 ms/round",
    ]


def test_torn_line_waits_for_its_end(run):
    reader = RoundReader()
    run.file.write_text('{"round": 1}\n{"rou')
    assert [r["round"] for r in reader.read(run.file)] == [1]
    assert reader.read(run.file) == []
    with run.file.open("a") as file:
        file.write('nd": 2}\n{"round": 3}\n')
    assert [r["round"] for r in reader.read(run.file)] == [2, 3]
    assert reader.read(run.file) == []


def test_missing_file_and_invalid_lines(run):
    reader = RoundReader()
    assert reader.read(run.file) == []
    run.file.write_bytes(b'\n[1]\nnope\n{"round": true}\n\xff\xfe\n{"round": 4}\n')
    assert [r["round"] for r in reader.read(run.file)] == [4]


def test_rewritten_file_is_read_again(run, plain):
    """--resume drops the rounds after the checkpoint; their failures must not count
    twice.
    """
    console, _ = plain
    failure = {"client": 4, "reason": "boom"}
    with Progress(9, "m", console, lambda: 100.0) as progress:
        for number in (1, 2, 3):
            run.add(number, failures=[failure])
        progress.poll(run.path)
        assert (progress.done, progress.failures) == (3, 3)
        kept = run.file.read_text().splitlines(keepends=True)[:2]
        write_text(run.file, "".join(kept))
        progress.poll(run.path)
        assert (progress.done, progress.failures) == (2, 2)
        run.add(3)
        progress.poll(run.path)
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
def test_the_rounds_of_a_resumed_run_count_as_done(record, line, run, plain):
    console, lines = plain
    run.file.write_text(json.dumps({"round": 5, **record}) + "\n")
    with Progress(8, "m", console, lambda: 100.0) as progress:
        progress.poll(run.path)
    assert lines() == [f"m: round 5/8  {line}"]


def test_failures_are_printed_with_client_and_reason_up_to_a_limit(run, plain):
    console, lines = plain
    with Progress(50, "m", console, lambda: 100.0) as progress:
        progress.poll(run.path)
        for number in range(1, 8):
            run.add(number, failures=[{"client": 12, "reason": "[red]x\n\x1b[2Jy"}])
            progress.poll(run.path)
    skipped = [line for line in lines() if "skipped" in line]
    assert skipped == [f"Round {n}: skipped client 12: [red]x [2Jy" for n in (1, 2, 3)]
    assert lines()[-1].endswith("7 failures")


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, ValueError])
def test_terminal_is_restored(run, error):
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
        run.add(1, accuracy=0.5)
        progress.poll(run.path)
        if error:
            raise error
    text = console.file.getvalue()
    assert "\x1b[?25l" in text
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")
    assert "[m]" in text
    assert "1/4" in text
    assert "loss 0.500  accuracy 50.0 %  2.00 s/round  ETA 6.0 s" in text


def test_json_lines_name_the_run(run, monkeypatch, capsys):
    monkeypatch.setenv(json_log.VARIABLE, "json")
    run.file.touch()
    with Progress(2, "fedavg") as progress:
        progress.poll(run.path)
        run.add(1)
        progress.poll(run.path)
        progress.note("writing the report")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["run"] for line in lines] == [run.path.name] * 2
    assert [line.get("round") for line in lines] == [1, None]

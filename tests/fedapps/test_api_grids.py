"""Sweeps, comparisons and plots from Python: what the commands write and print, as
objects for notebooks.
"""

import json
import re
import sys
import types
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

import fedapps
from fedapps.commands.parser import main
from fedapps.errors import RunFailed, UserError
from fedapps.lab import api
from fedapps.lab.client_samples import client_samples
from fedapps.lab.sweeps.execution import SweepProgress
from fedapps.lab.sweeps.pool import Ended, PlannedRun
from fedapps.runs.prepare import with_defaults
from fedapps.runs.progress import Progress, in_notebook
from tests.helpers import assert_arrays, lacking, printed, refused, rows_of

pandas = pytest.importorskip("pandas")
LASSO = {
    "task": "lasso",
    "num_clients": 3,
    "clients_per_round": 0,
    "num_rounds": 4,
    "evaluate_every": 2,
    "checkpoint_every": 2,
}
DIGITS = {
    "num_rounds": 2,
    "num_clients": 4,
    "clients_per_round": 0,
    "evaluate_every": 1,
    "train": {"local_epochs": 1},
}
FILE = """
task = "lasso"
num-clients = 3
clients-per-round = 0
num-rounds = 4
evaluate-every = 2
checkpoint-every = 2
seed = [0, 1]
[axis.step]
short = { fedfw.offset = 2 }
"a <long> one" = { fedfw.offset = 8 }
[[when]]
seed = 1
set = { num-rounds = 2 }
[sweep]
rows = ["step"]
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two methods, the first with two seeds, the second with one."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        (method, seed): fedapps.run(
            method, seed=seed, out=folder / f"{method}-{seed}", progress=False, **DIGITS
        )
        for method in ("fedper", "local")
        for seed in (0, 1)
    }


def same(frame, path):
    """Check that a DataFrame equals a CSV file."""
    written = pandas.read_csv(StringIO(frame.to_csv(index=False)))
    pandas.testing.assert_frame_equal(written, pandas.read_csv(path), check_dtype=False)


# --- sweeps ---------------------------------------------------------------------------


def test_a_sweep_of_settings_is_that_of_the_file(in_process, tmp_path, capsys):
    (tmp_path / "grid.toml").write_text(FILE)
    assert (
        main(
            [
                "sweep",
                str(tmp_path / "grid.toml"),
                "method=fedfw",
                "--out",
                str(tmp_path / "command"),
            ]
        )
        == 0
    )
    capsys.readouterr()
    by_file = fedapps.sweep(
        tmp_path / "grid.toml", method="fedfw", out=tmp_path / "file", progress=False
    )
    by_settings = fedapps.sweep(
        **{**LASSO, "method": "fedfw", "seed": [0, 1]},
        axis={
            "step": {"short": {"fedfw": {"offset": 2}}, "a <long> one": {"fedfw": {"offset": 8}}}
        },
        when=[{"seed": 1, "set": {"num_rounds": 2}}],
        sweep={"rows": ["step"]},
        out=tmp_path / "settings",
        progress=False,
    )
    assert capsys.readouterr() == ("", "")
    table = (tmp_path / "command" / "table.csv").read_text()
    for done in (by_file, by_settings):
        assert (done.folder / "table.csv").read_text() == table
        assert sorted(done.runs) == sorted(
            path.name for path in (tmp_path / "command" / "cells").iterdir()
        )
        same(done.table, tmp_path / "command" / "table.csv")
    assert {run.summary["rounds-completed"] for run in by_settings.runs.values()} == {2, 4}
    record = json.loads((tmp_path / "file" / "sweep.json").read_text())
    assert record["settings"] == ['method="fedfw"']
    assert set(fedapps.compare(by_file).table["method"]) == {"fedfw"}
    assert "a &lt;long&gt; one" in by_settings._repr_html_()
    assert "<b>" not in by_settings._repr_html_().split("</thead>")[0]
    page = (tmp_path / "command" / "report.html").read_text()
    assert list(by_settings.plot()) == re.findall(r'<figure class="chart" data-name="(.*?)"', page)


def test_a_repeated_sweep_continues_and_failures_are_reported(in_process, tmp_path):
    grid = {
        **LASSO,
        "method": "fedfw",
        "seed": [0, 1, 2],
        "out": tmp_path / "out",
        "progress": False,
    }
    in_process.broken["seed-1"] = "it died"
    refused(
        lambda: fedapps.sweep(**grid),
        r"1 of 3 runs failed, the first is seed-1: it died\. Repeat the call",
        RunFailed,
    )
    assert rows_of(tmp_path / "out" / "table.csv")[0]["seeds"] == "2"
    in_process.broken.clear()
    in_process.begun.clear()
    assert (
        repr(fedapps.sweep(**grid))
        == f"<fedapps.Sweep lasso: fedfw, 3 of 3 runs: {tmp_path / 'out'}>"
    )
    assert in_process.begun == ["seed-1"]


def test_mistakes_of_a_sweep(tmp_path):
    for given, said in (
        ({"method": ["fedavg", "fedavgg"]}, "method = 'fedavgg': did you mean 'fedavg'"),
        ({"num_round": [1, 2]}, "unknown setting 'num_round': did you mean 'num_rounds'"),
        ({"sweep": {"row": ["seed"]}}, "did you mean 'rows'"),
        ({"seed": []}, "the list is empty"),
        ({"jobs": -1}, "jobs=-1: choose"),
        ({"file": tmp_path / "no.toml"}, "no.toml: no such file"),
    ):
        refused(lambda: fedapps.sweep(**{"out": tmp_path / "out", **given}), said, UserError)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_script_without_a_main_guard_may_sweep(tmp_path):
    """Processes that import the script again would need `if __name__ == "__main__"`."""
    lines = [
        "import fedapps",
        "print('begun')",
        f"done = fedapps.sweep(method='fedfw', seed=[0, 1], jobs=1, **{LASSO!r})",
        "print(len(done.table))",
    ]
    (tmp_path / "study.py").write_text("\n".join(lines))
    assert printed("study.py", cwd=tmp_path) == "begun\n1\n"
    assert (tmp_path / "results" / "sweep" / "report.html").exists()


# --- comparisons ----------------------------------------------------------------------


def test_a_comparison_is_that_of_the_command(runs, tmp_path, capsys):
    folders = [str(run.folder) for run in runs.values()]
    assert main(["compare", *folders, "--out", str(tmp_path / "command")]) == 0
    printed = capsys.readouterr().out
    files = [path for run in runs.values() for path in run.folder.parent.rglob("*")]
    before = {path: path.stat().st_mtime_ns for path in files}
    comparison = fedapps.compare(*runs.values())
    assert {path: path.stat().st_mtime_ns for path in files} == before
    assert comparison.folder is None
    same(comparison.table, tmp_path / "command" / "comparison.csv")
    same(comparison.gains, tmp_path / "command" / "gains.csv")
    assert comparison.table["gain-mean"][0] == pytest.approx(np.mean(comparison.gains["gain"]))
    assert f"{100 * comparison.table['gain-mean'][0]:+.1f}" in printed
    assert lacking(comparison._repr_html_(), "Gain over local", "2 seeds") == []
    assert capsys.readouterr().out == ""


def test_it_takes_runs_folders_and_lists_and_writes_if_asked(runs, tmp_path):
    fedper, local = (runs[method, 0] for method in ("fedper", "local"))
    comparison = fedapps.compare(
        [fedper, str(local.folder)], reference=fedper, out=tmp_path / "page"
    )
    assert comparison.folder == tmp_path / "page"
    assert sorted(path.name for path in comparison.folder.iterdir()) == [
        "comparison.csv", "gains.csv", "report.html",
    ]  # fmt: skip
    assert set(comparison.gains["label"]) == {"local"}
    refused(lambda: fedapps.compare(), "no folder given", UserError)
    refused(lambda: fedapps.compare(fedper, worst=0), "worst=0: must be above 0", UserError)


# --- what a notebook shows ------------------------------------------------------------


def test_the_plots_of_a_run_are_those_of_its_report(runs, tmp_path):
    run = runs["fedper", 0]
    plots = run.plot()
    page = (run.folder / "report.html").read_text()
    assert set(plots) == set(re.findall(r'<figure class="chart" data-name="(.*?)"', page))
    main(["figures", str(run.folder), "--format", "png", "--out", str(tmp_path / "command")])
    for path in plots.save(tmp_path / "new"):
        assert path.read_bytes() == (tmp_path / "command" / path.name).read_bytes()
    assert plots["clients"]._repr_svg_().startswith("<svg")
    assert plots._repr_html_().count("<img ") == len(plots)
    assert plots["clients"]._repr_svg_() != run.plot(dark=True)["clients"]._repr_svg_()
    refused(lambda: plots["client"], "did you mean 'clients'", KeyError)
    refused(
        lambda: plots["clients"].save(tmp_path / "plot.jpg"),
        r"written as \.pdf, \.png or \.svg",
        UserError,
    )


def test_a_run_is_shown_in_short(runs, tmp_path):
    run = runs["fedper", 0]
    shown = run._repr_html_()
    assert (
        lacking(
            shown,
            f"{100 * run.summary['accuracy-mean']:.1f}",
            "Completed: 2 of 2 rounds.",
            str(run.folder / "report.html"),
        )
        == []
    )
    assert len(shown) < 3000
    (tmp_path / "settings.toml").write_text('method = "<script>"\n')
    assert "&lt;script&gt;" in fedapps.load(tmp_path)._repr_html_()


def test_the_partition_is_what_the_command_shows(capsys):
    given = {"data": {"partition": "dirichlet", "alpha": 0.3, "min_samples": 5}, "num_clients": 4}
    dealt = fedapps.partition(**given)
    samples, _, notes = client_samples(with_defaults(api.flat(given)))
    table = dealt.table
    assert_arrays(
        (
            table[[f"class {k}" for k in range(10)]].to_numpy(),
            table[["train", "validation", "test"]].to_numpy(),
        ),
        (samples.trained, samples.sizes),
    )
    assert dealt.notes == notes
    assert dealt.plot()._repr_svg_().startswith("<svg")
    assert dealt._repr_html_().count("<tr>") == 5
    assert repr(dealt) == "<fedapps.Partition of digits: 4 clients, 10 classes>"


@pytest.fixture
def kernel(monkeypatch):
    """The parts of a notebook's kernel that are used; yields the list of what its cell
    shows, the latest content of each place.
    """
    places = []

    def display(content, raw, display_id):
        assert (raw, display_id) == (True, True)
        place = [content]
        places.append(place)
        return types.SimpleNamespace(update=lambda content, raw: place.append(content))

    kernel = types.SimpleNamespace(kernel=object())
    for name, content in (
        ("IPython", {"get_ipython": lambda: kernel}),
        ("IPython.display", {"display": display}),
    ):
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(**content))
    return places


def test_in_a_notebook_one_line_is_updated(request, tmp_path, capsys):
    assert not in_notebook()
    kernel = request.getfixturevalue("kernel")
    assert in_notebook()
    clock = iter(np.arange(0, 100, 0.5))
    with Progress(3, "fedavg on <b>", clock=lambda: float(next(clock))) as progress:
        progress.note("starting")
        for number in (1, 2, 3):
            with (tmp_path / "rounds.jsonl").open("a") as file:
                file.write(
                    json.dumps({"round": number, "seconds": 1.0, "train": {"loss": 0.5}}) + "\n"
                )
            progress.poll(tmp_path)
    assert len(kernel) == 1
    assert (
        lacking(kernel[0][-1]["text/html"], 'value="3" max="3"', "fedavg on &lt;b&gt;: round 3/3")
        == []
    )
    assert kernel[0][-1]["text/plain"].startswith("fedavg on <b>: round 3/3  loss 0.500")
    assert capsys.readouterr() == ("", "")
    runs = [PlannedRun({"num-rounds": 4}, tmp_path / name) for name in ("a", "b")]
    with SweepProgress(runs, runs) as progress:
        progress.show_end(Ended(runs[0], {"rounds-completed": 4, "seconds": 1.0}))
        progress.show_end(Ended(runs[1], {}, "it died"))
    assert len(kernel) == 2
    assert kernel[1][-1]["text/plain"] == "1/2 runs, 1 failed, 8/8 rounds"
    assert "b: failed: it died" in capsys.readouterr().out


def test_a_notebook_obeys_no_color(monkeypatch):
    """rich writes HTML there, and does not look for the variable itself."""
    styles = []
    monkeypatch.setattr(
        "rich.jupyter.display", lambda segments, text: styles.extend(s.style for s in segments)
    )
    for wanted, colours in (("", {"yellow"}), ("1", set())):
        styles.clear()
        monkeypatch.setenv("NO_COLOR", wanted)
        progress = Progress(1, "x", Console(force_jupyter=True))
        progress._print_failure({"client": "1", "reason": "it died"})
        assert {style.color.name for style in styles if style and style.color} == colours


def test_printed_tables_are_whole(runs, in_process, tmp_path):
    """Wider than 80 columns, and nothing is cut or wrapped."""
    compared = fedapps.compare(*runs.values())
    lines = str(compared).split("\n")
    assert lines[0] == repr(compared)
    assert any(
        "fedper" in line and "±" in "".join(lines[n : n + 2]) for n, line in enumerate(lines)
    )
    assert lacking(str(compared), "\x1b", "…") == ["\x1b", "…"]
    wide = fedapps.sweep(
        **{**{k: v for k, v in LASSO.items() if k != "num_rounds"}, "method": "fedfw"},
        axis={
            "step": {
                f"offset {n} " + "of a long name" * 2: {"fedfw": {"offset": n}} for n in (2, 4)
            },
            "rounds": {f"{n} rounds, " + "said at length" * 4: {"num_rounds": n} for n in (2, 4)},
        },
        out=tmp_path / "wide",
        progress=False,
    )
    for name in wide.table["step"]:
        assert name in str(wide)
    rows = [line for line in str(wide).split("\n") if line.startswith("| offset 2")]
    assert rows
    assert all(line.endswith("|") for line in rows)
    one = str(next(iter(runs.values())))
    assert one.startswith("<fedapps.Run fedper on digits, completed: ")
    assert len({len(line) for line in one.split("\n")}) > 1
    dealt = fedapps.partition(data={"partition": "dirichlet", "alpha": 0.3}, num_clients=4)
    assert len([line for line in str(dealt).split("\n") if line.startswith("| ")]) == 6

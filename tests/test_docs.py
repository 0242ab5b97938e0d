"""The documentation is true: links work, commands parse, options and defaults exist,
example code runs.
"""

import functools
import importlib
import itertools
import json
import re
import shlex
import tomllib
from dataclasses import replace
from pathlib import Path
from string import Template
from textwrap import dedent

import numpy as np
import pytest
import torch
import yaml
from click import Group
from flwr.app import Array, ArrayRecord, Context, RecordDict
from flwr.cli.app import app as flwr
from flwr.clientapp import ClientApp
from flwr.common.config import parse_config_args
from flwr.proto.federation_config_pb2 import SimulationConfig
from flwr.serverapp import ServerApp
from torch.nn.functional import cross_entropy
from typer.main import get_command

from fedapps.commands.parser import COMMANDS, parse
from fedapps.commands.run import settings_of
from fedapps.engines.inline import InlineGrid
from fedapps.errors import UserError
from fedapps.lab.sweeps import execution
from fedapps.lab.sweeps.plan import read_plan
from fedapps.lab.sweeps.pool import Ended, run_one
from fedapps.methods import METHODS, checked_method
from fedapps.runs.assembly import build_strategy, build_task
from fedapps.settings.reading import default_config, read_settings
from fedapps.settings.rules import COUNTED, refuse
from fedapps.toml_text import toml_value
from tests.helpers import ROOT, printed, run_inline

EXAMPLE = ROOT / "examples" / "own-project"
TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
PAGES = [*(ROOT / name for name in TOP), *sorted((ROOT / "docs").rglob("*.md"))]
# contains wrong commands on purpose, which are not checked
BENCHMARKS = ROOT / "benchmarks" / "README.md"
STRATEGY_PAGE = ROOT / "docs" / "strategy-in-your-project.md"
# The method that this page adds is tested by tests/fedapps/test_add_a_method.py.
METHOD_PAGE = ROOT / "docs" / "add-a-method.md"
PROPOSED = re.findall(r'^ +"([\w-]+)": Method\(', METHOD_PAGE.read_text(encoding="utf-8"), re.M)
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.M | re.S)
# Programs that the shell blocks call: those checked here, and those that cannot be
# checked without a network, rights or a cluster.
CHECKED = {"fedapps", ".venv/bin/fedapps", "flwr", "make", "python", ".venv/bin/python"}
NOT_CHECKED = {
    *(
        "cd",
        "export",
        "source",
        "sleep",
        "for",
        "done",
        "tail",
        ".venv/bin/ruff",
        ".venv/bin/pre-commit",
        "python3",
    ),
    *(
        "/opt/fedapps/.venv/bin/pip",
        "unshare",
        "useradd",
        "ip",
        "systemctl",
        "tensorboard",
        "pip",
        "srun",
        "kubectl",
        "head=$(hostname)",
    ),
}


def each(check, cases):
    """Call ``check`` for every case; fail with a line for each that is wrong."""
    wrong = []
    for case in cases:
        try:
            check(case)
        except (Exception, SystemExit) as error:
            name = case.relative_to(ROOT) if isinstance(case, Path) else case
            wrong.append(f"{name}: {error or type(error).__name__}")
    assert not wrong, "\n".join(wrong)


def prose(page):
    """Return a page without its code blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def blocks(page, *languages):
    """Return the code blocks of a page that are in one of the languages."""
    blocks_found = FENCE.findall(page.read_text(encoding="utf-8"))
    return [dedent(code) for _, language, code in blocks_found if language in languages]


def anchors(page):
    """Return the names by which the headings of a page are linked."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# --- commands -------------------------------------------------------------------------


def shell_lines(block):
    """Return the commands of a shell block: continued lines joined, each variable of a
    ``for`` loop replaced by each of its values.
    """
    variables, lines = {}, []
    for line in block.replace("\\\n", " ").splitlines():
        if loop := re.match(r"\s*for (\w+) in (.*?); do", line):
            variables[loop[1]] = loop[2].split()
            continue
        used = [name for name in variables if f"${name}" in line]
        lines += [
            Template(line).safe_substitute(dict(zip(used, values, strict=True)))
            for values in itertools.product(*(variables[name] for name in used))
        ]
    return [line.strip() for line in lines]


def commands(page, program):
    """Return the commands of a page that call ``program``, in blocks and in running
    text.
    """
    lines = [line for block in blocks(page, "sh") for line in shell_lines(block)]
    lines += re.findall(r"`([^`\n]+)`", prose(page))
    return [
        line
        for line in (line.removeprefix(".venv/bin/") for line in lines)
        if line.startswith(f"{program} ")
    ]


def experiment_commands():
    """Return the commands in the comments of the experiments."""
    text = "\n".join(
        path.read_text(encoding="utf-8") for path in sorted((ROOT / "experiments").rglob("*.toml"))
    )
    return [
        re.sub(r" {2,}\(.*\)$", "", line) for line in re.findall(r"^#\s+(fedapps .*)$", text, re.M)
    ]


def all_commands(program, pages=PAGES):
    return sorted({line for page in pages for line in commands(page, program)})


@pytest.mark.slow
def test_commands_parse_and_their_settings_exist(monkeypatch, tmp_path):
    """Except of methods that a page proposes and of files that another one makes."""
    for name, page in (("visits", "bring-your-own"), ("grid", "sweep")):  # which make these first
        (tmp_path / f"{name}.toml").write_text(blocks(ROOT / "docs" / f"{page}.md", "toml")[0])
    # many differ only in where they write
    planned = functools.cache(read_plan)
    made = (["run", "settings.toml"], ["run", "winner.toml"], ["sweep", "DIR"])

    def check(line):
        words = shlex.split(line, comments=True)
        own = any(name in line for name in ("own_method", "run.toml", "methods.toml"))
        monkeypatch.chdir(ROOT / "examples" / "own-method" if own else ROOT)
        if "visits.toml" in words:
            monkeypatch.chdir(tmp_path)
        if len(words) == 2 or "--help" in words:  # the bare name of a command
            assert words[1] in COMMANDS
        elif words[1:] not in made and not any(f"method={name}" in words for name in PROPOSED):
            arguments = parse(words[1:])
            if words[1] == "run":  # an unknown key, a wrong value, a missing file raise
                settings = settings_of(arguments)
                refuse(replace(settings, num_clients=settings.num_clients or 20), COUNTED)
            if words[1] == "sweep":
                made_file = arguments.file.name == "grid.toml"
                file = tmp_path / "grid.toml" if made_file else arguments.file
                assert planned(file, tuple(arguments.settings), arguments.scale).points

    each(check, sorted({*all_commands("fedapps"), *experiment_commands()}))


def test_flowers_commands_exist_with_their_options_and_known_settings():
    def check(line):
        command = get_command(flwr)
        words = [one for one in shlex.split(line, comments=True)[1:] if not one.startswith("...")]
        for option, value in itertools.pairwise(words):
            if option == "--federation-config":
                keys = {key.replace("-", "_") for key in parse_config_args([value])}
                assert keys <= set(SimulationConfig.DESCRIPTOR.fields_by_name)
            if option == "--run-config":
                read_settings(parse_config_args([value]))
        while words and isinstance(command, Group):
            command = command.commands[words.pop(0)]
        known = {one for p in command.params for one in [*p.opts, *p.secondary_opts]} | {"--help"}
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known

    each(check, all_commands("flwr"))


def test_scripts_exist_and_know_their_options():
    def check(line):
        words = shlex.split(line.translate(str.maketrans("[]", "  ")), comments=True)
        if not words[1].startswith("-"):  # of the interpreter
            text = (ROOT / words[1]).read_text(encoding="utf-8")
            assert [w for w in words[2:] if w.startswith("--") and f'"{w}"' not in text] == []

    each(check, all_commands("python", [*PAGES, BENCHMARKS]))


def test_blocks_hold_data_that_can_be_read_known_programs_and_make_targets():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))

    def check(page):
        text = "\n".join(blocks(page, "sh")).replace("\\\n", " ")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        called = {line.split()[0] for line in lines if not line.startswith("#")}
        assert called <= CHECKED | NOT_CHECKED
        lines += re.findall(r"`([^`\n]+)`", prose(page))
        assert {one for line in lines for one in re.findall(r"^make ([a-z-]+)", line)} <= targets
        for name, read in (("toml", tomllib.loads), ("yaml", yaml.safe_load), ("json", json.loads)):
            assert all(read(block) for block in blocks(page, name))

    each(check, PAGES)


# --- links, options, methods ----------------------------------------------------------


def links(page):
    return re.findall(r"\]\(([^)\s]+)\)", prose(page))


def named_settings(page):
    """Return (key, value) of the settings in a page's text; the value is empty outside
    tables of options.
    """
    tables = "|".join({key.split(".")[0] for key in default_config() if "." in key})
    return re.findall(
        rf"`(?!\w+\.(?:safetensors|jsonl|csv)`|train\.loss)((?:{tables})\.[a-z0-9-]+)(?:=[^`]*)?`(?: \| "
        r"`([^`]*)` \|)?",
        prose(page),
    )


def test_images_are_small_and_used():
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    for image in (ROOT / "docs" / "images").iterdir():
        assert image.stat().st_size < 150_000
        assert f"images/{image.name})" in text


def test_links_lead_somewhere():
    assert sum(len(links(page)) for page in PAGES) > 200

    def check(page):
        for target in links(page):
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if not re.match(r"\w+:", target):
                assert file.exists(), f"{target}: no such file"
                assert file.is_relative_to(ROOT), f"{target}: outside the project"
                assert not anchor or anchor in anchors(file), f"{target}: no such heading"

    each(check, [*PAGES, BENCHMARKS])


def broken_tables(text):
    """The first lines of tables that a renderer shows as plain text, and rows whose
    number of cells is not that of their header.
    """
    blocks = re.findall(r"(?:^ *\|.*\n?)+", re.sub(r"`[^`\n]*`", "code", FENCE.sub("", text)), re.M)
    tables = [
        [re.split(r"(?<!\\)\|", row.strip()) for row in block.splitlines()] for block in blocks
    ]
    return [
        row
        for head, *rows in tables
        for row in [head, *rows]
        if len(row) != len(head) or not rows or not re.fullmatch("[ :-]+", "".join(rows[0]))
    ]


def test_tables_have_a_header_and_rows_of_its_length():
    assert broken_tables("| a | b |\n| --- | --- |\n| `x|y` | 2 |\n") == []
    for wrong in ("\n| 1 | 2 |", "| 1 |"):
        assert broken_tables(f"| a | b |\n| --- | --- |\n{wrong}\n") != []
    pages = {page: broken_tables(page.read_text(encoding="utf-8")) for page in [*PAGES, BENCHMARKS]}
    assert {page.name: rows for page, rows in pages.items() if rows} == {}


def test_every_page_is_three_clicks_from_the_front_page():
    front = ROOT / "docs" / "README.md"
    reached, seen = {front}, {front}
    for _ in range(3):
        targets = {
            (page.parent / link.partition("#")[0]).resolve()
            for page in reached
            for link in links(page)
        }
        reached = {page for page in targets if page in PAGES} - seen
        seen |= reached
    assert [
        str(page.relative_to(ROOT))
        for page in PAGES
        if page not in seen and page != ROOT / "README.md"
    ] == []


def test_settings_named_in_the_text_exist_with_their_defaults():
    known = default_config()
    values = [value for page in PAGES for _, value in named_settings(page)]
    assert (len(values) > 200, sum(map(bool, values)) > 120) == (True, True)

    def check(page):
        rows = re.findall(r"^\| `([a-z-]+)` \| `([^`]*)` \|", prose(page), re.M)
        for key, value in [*named_settings(page), *rows]:
            assert key in known
            assert (value or toml_value(known[key])) == toml_value(known[key]), key

    each(check, PAGES)


def test_pages_of_methods_have_generated_option_tables():
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES if page.name != "settings.md")
    marked = {
        word.partition(".")[0]  # of a table that repeats another one only its own keys are marked
        for words in re.findall(r"<!-- settings: (.*?) -->", text)
        for word in words.split()
    }
    assert {method.table for method in METHODS.values() if method.options} <= marked
    assert "| key | default | |" not in text


def test_the_page_of_methods_lists_every_method_with_its_page():
    rows = re.findall(
        r"^\| \[`([\w-]+)`\]\((.*?)\) \|",
        (ROOT / "docs" / "methods.md").read_text(encoding="utf-8"),
        re.M,
    )
    assert sorted(name for name, _ in rows) == sorted(METHODS)
    for name, page in rows:
        assert f"method={name}" in (ROOT / "docs" / page).read_text(encoding="utf-8")


# --- the example ----------------------------------------------------------------------


@pytest.fixture
def own_project(monkeypatch):
    """Import the example's modules, with the digits read once."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    client_app = importlib.import_module("own_project.client_app")
    monkeypatch.setattr(client_app, "load_digits", functools.cache(client_app.load_digits))
    return lambda reference: getattr(
        importlib.import_module(reference.split(":")[0]), reference.split(":")[1]
    )


def test_the_page_shows_the_server_and_links_the_rest():
    shown, text = blocks(STRATEGY_PAGE, "python"), STRATEGY_PAGE.read_text(encoding="utf-8")
    assert (EXAMPLE / "own_project" / "server_app.py").read_text(encoding="utf-8") in shown
    for line in ('config["proximal-mu"] * (weights - start)', '{"method": "fedprox"}'):
        assert line in text
        assert line in (EXAMPLE / "own_project" / "client_app.py").read_text(encoding="utf-8")
    for name in ("pyproject.toml", "own_project/client_app.py", "own_project/personal.py"):
        assert f"](../examples/own-project/{name})" in text


@pytest.mark.slow
@pytest.mark.parametrize("personal", [False, True])
def test_the_example_runs_and_ends_as_the_page_says(personal, own_project, capsys):
    text, pattern = prose(STRATEGY_PAGE), r"`round 20: accuracy (\d\.\d+)`"
    app = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]
    config, components = app["app"]["config"], app["app"]["components"]
    if personal:
        components = dict(re.findall(r'`(serverapp|clientapp) = "(.*?)"`', text))
        pattern = r"accuracy (\d\.\d+) for the mixed models, (\d\.\d+) for the global"
    server_app, client_app = (own_project(components[name]) for name in ("serverapp", "clientapp"))
    assert (type(server_app), type(client_app)) == (ServerApp, ClientApp)
    server_app(InlineGrid(client_app, 10), Context(1, 1, {}, RecordDict(), config))
    last = re.findall(r"\d\.\d+", capsys.readouterr().out.splitlines()[-1])
    said = [float(number) for number in re.search(pattern, text).groups()]
    assert list(map(float, last)) == pytest.approx(said, abs=0.01)


def test_the_examples_client_keeps_fedproxs_contract(own_project):
    """Twenty gradient steps of the loss with the term, by automatic differentiation."""
    rng = np.random.default_rng(0)
    x, y, start, mu = rng.random((6, 64)), rng.integers(0, 10, 6), rng.normal(size=(64, 10)), 0.7
    client = own_project("own_project.client_app:SoftmaxClient")(x, y)
    weights = torch.tensor(start, requires_grad=True)
    optimiser = torch.optim.SGD([weights], 0.5)
    for _ in range(20):
        optimiser.zero_grad()
        outputs = torch.as_tensor(client.x) @ weights
        pull = mu / 2 * ((weights - torch.as_tensor(start)) ** 2).sum()
        (cross_entropy(outputs, torch.as_tensor(client.y)) + pull).backward()
        optimiser.step()
    (trained,), num_examples, _ = client.fit([start], {"proximal-mu": mu})
    np.testing.assert_allclose(trained, weights.detach(), atol=1e-9)
    assert num_examples == 3


SNIPPETS = [
    pytest.param(
        code,
        id=f"{page.stem}-{number}",
        marks=[pytest.mark.slow] if re.search(r"fedapps\.\w+\(|results/", code) else [],
    )
    for page in PAGES
    if page.name != "bring-your-own.md"  # run by tests/fedapps/test_bring_your_own.py
    for number, code in enumerate(blocks(page, "python"))
    if page != METHOD_PAGE or "fednova" not in code.lower()
    if code not in {path.read_text(encoding="utf-8") for path in EXAMPLE.rglob("*.py")}
    if "class Net(nn.Module)" not in code  # run by tests/fedapps/tasks/test_own_nets.py
]
#: What a snippet with this word prints.
PRINTED = {
    "fedapps.sweep(": r"^0 +fedavg +0\.\d+ +-?0\.\d+\n1 +local +0\.\d+ +NaN$",
    "fedapps.run(": r"^completed 0\.\d+$",
    "results/superfed-mm-digits-seed0": r"^0\.\d+ \d+$",
}


@pytest.mark.parametrize("code", SNIPPETS)
def test_snippets_run(code, own_project, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    one_after_the_other = lambda runs, *places: (Ended(run, run_one(run)) for run in runs)
    monkeypatch.setattr(execution, "run_all", one_after_the_other)
    if "model=net" in code:  # a function of a script, which is read
        Path("script.py").write_text(code)
        assert re.search(r"^fedavg +[6-9]\d\.\d ", printed("script.py"), re.M)
        return
    if folder := re.search(r'"(results/superfed-mm-digits-seed0)"', code):
        settings = {"method": "superfed-mm", "num-rounds": 2, "train.local-epochs": 1}
        run_inline(Path(folder[1]), **settings)
        capsys.readouterr()
    for wanted in (wanted for word, wanted in PRINTED.items() if word in code):
        exec(compile(code, "snippet", "exec"), {})
        said = capsys.readouterr().out
        assert re.search(wanted, said, re.M), said
        return

    class Plain(own_project("own_project.client_app:SoftmaxClient")):
        """The example's client for strategies that send no proximal weight, or want to
        know the loss.
        """

        def fit(self, parameters, config):
            arrays, num_examples, metrics = super().fit(parameters, {"proximal-mu": 0.0, **config})
            return arrays, num_examples, metrics | {"loss-before": 1.0}

    digits_of = own_project("own_project.client_app:digits_of")
    client_fn = lambda context: Plain(*digits_of(context))
    start = ArrayRecord({"weights": Array(np.zeros((64, 10)))})
    names = {
        "grid": InlineGrid(own_project("own_project.client_app:to_client_app")(client_fn), 10),
        "start": start,
        "initial_arrays": start,
        "client_fn": client_fn,
        "SoftmaxClient": Plain,
        "digits_of": digits_of,
        "softmax": own_project("own_project.client_app:softmax"),
    }
    exec(compile(code, "snippet", "exec"), names)
    if "result" in names:
        assert list(names["result"].evaluate_metrics_clientapp.values())[-1]["accuracy"] > 0.75
    elif "exams" in names:
        for exam in [value for name, value in names.items() if name.startswith("test_")]:
            exam()
    elif "METHOD" in names:
        made = checked_method("method", "snippet:METHOD", names["METHOD"])
        assert made.options(pull=1.0).pull == 1.0
    else:
        assert isinstance(names["app"], ClientApp)
    if "report" in names:
        assert capsys.readouterr().out.splitlines()[-1].startswith("20 5 ")


def test_the_page_on_privacy_says_of_every_method_whether_it_can_be_private():
    page = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    said = {}
    for row in re.findall(r"^\| (`.*?) \| (.*?) \|", page, re.M):
        said |= dict.fromkeys(re.findall(r"`([\w-]+)`", row[0]), row[1])
    assert [name for name in METHODS if name not in said] == []
    for name in METHODS:
        settings = read_settings({"method": name, "dp.noise-multiplier": 1.0})
        try:
            build_strategy(settings, build_task(settings))
        except UserError:
            assert not said[name].startswith("yes"), name
        else:
            assert said[name].startswith("yes"), name


# --- the headline ---------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "finetune", "local", "superfed-mm"])
@pytest.mark.parametrize(
    ("page", "job"),
    [("README.md", "default.toml"), ("docs/reading-a-report.md", "two-classes.toml")],
)
def test_the_table_of_a_page_matches_a_run(page, job, method, tmp_path):
    """Up to three points: versions of PyTorch differ in the last bits, and training
    enlarges these differences.
    """
    command = rf"fedapps run experiments/{job} +method={method} ?(\S*=\S*)? *--out"
    options = re.search(command, (ROOT / page).read_text(encoding="utf-8"))
    words = filter(None, options.groups() if options else ())
    words = (str(ROOT / "experiments" / job), *words, "evaluate-every=0", "checkpoint-every=0")
    summary = run_inline(tmp_path / "out", *words, method=method)
    keys = ("mean", "std", "worst10", "best10", "worst")
    (row,) = re.findall(rf"^{method} +([\d. ]+)$", blocks(ROOT / page, "text")[0], re.M)
    wanted = [100 * summary[f"accuracy-{key}"] for key in keys]
    assert [float(cell) for cell in row.split()[:5]] == pytest.approx(wanted, abs=3)

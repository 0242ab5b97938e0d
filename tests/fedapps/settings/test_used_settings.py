"""What is not used is refused or named; what is meant is understood."""

import pytest

from fedapps.commands.parser import main
from fedapps.commands.run import settings_of
from fedapps.errors import UserError
from fedapps.lab import api
from fedapps.lab.charts.theme import THEME
from fedapps.lab.results.run_plots import comparison_figure, measure_figure
from fedapps.lab.sweeps.plan import read_plan
from fedapps.records.reader import read_run
from fedapps.runs.prepare import with_defaults
from fedapps.settings.reading import default_config, read_settings
from fedapps.settings.tables import PARTS
from fedapps.toml_text import to_toml, toml_value
from tests.helpers import lacking, refused, run_inline, write_file

#: The defaults of parts that are off.
OFF = {
    key: value
    for key, value in default_config().items()
    if key.split(".")[0] in ("dp", "robust", "secure", "sites")
}


def settings(*words):
    from fedapps.commands.parser import parse

    return settings_of(parse(["run", *words]))


def test_an_option_of_another_method_is_refused(error_of):
    said = error_of("run", "--engine", "inline", "method=fedavg", "fedprox.mu=0.1")
    assert lacking(said, "fedprox.mu = 0.1", "choose fedprox") == []
    assert "tabular.source" in error_of("run", "--engine", "inline", "tabular.source=x.csv")
    refused(lambda: api.run("fedavg", fedprox={"mu": 0.1}), r"fedprox\.mu", UserError)
    settings("method=term", "term.base=fedprox", "fedprox.mu=0.1")
    settings("method=warm-start", "warm-start.then=ditto", "ditto.epochs=2")


@pytest.mark.parametrize(
    ("given", "switch"),
    [
        ("dp.max-epsilon=3", "dp.noise-multiplier above 0"),
        ("secure.bound=5", "secure.on = true"),
        ("robust.num-malicious=2", "another robust.rule than 'none'"),
        ("public.samples=300", "method = ffgb-distill"),
        ("synthetic.samples=20", "method = fedevg"),
    ],
)
def test_an_option_of_a_part_that_is_off_is_refused_or_named(
    given, switch, error_of, tmp_path, caplog
):
    key, _, value = given.partition("=")
    said = error_of("run", "--engine", "inline", given)
    assert lacking(said, f"{key} = {value}: ", switch) == []
    table, _, name = key.partition(".")
    refused(
        lambda: api.run("fedavg", **{table: {name.replace("-", "_"): int(value)}}), key, UserError
    )
    path = write_file(tmp_path / "job.toml", f"{key} = {value}\n")
    settings(str(path))
    assert f"not used by this run: {key}" in caplog.text
    path.write_text(f"{key} = {value}\nmethod = ['fedavg', 'local']\n")
    refused(lambda: read_plan(path), key, UserError)


def test_every_part_that_can_be_off_says_how_it_is_turned_on():
    whole = read_settings({})
    off = {name for name, part in PARTS.items() if not part.used(whole)}
    assert off == {name for name, part in PARTS.items() if part.switch}


@pytest.mark.parametrize(
    "words",
    [
        [f"{key}={toml_value(value)}" for key, value in OFF.items()],
        ["dp.noise-multiplier=1", "dp.max-epsilon=3"],
        ["secure.on=true", "secure.bound=5"],
        ["robust.rule=trimmed-mean", "robust.num-malicious=2"],
        ["method=ffgb-distill", "public.samples=300"],
        ["method=fedevg", "synthetic.samples=20"],
        ["data.synthetic=set.npz", "synthetic.steps=20"],
    ],
)
def test_the_default_of_a_part_that_is_off_may_be_given_and_all_of_one_that_is_on(words):
    assert {word.partition("=")[0] for word in words} - OFF.keys() <= settings(*words).flat().keys()


def test_options_of_a_file_that_the_method_does_not_use_are_named(tmp_path, caplog):
    path = write_file(tmp_path / "job.toml", "fedprox.mu = 0.1\nditto.epochs = 2\n")
    assert settings(str(path), "method=fedprox").options.mu == 0.1
    assert settings(str(path)).method == "fedavg"
    assert main(["data", str(path)]) == 0
    path.write_text('method = "fedavg"\n' + path.read_text())
    settings(str(path))
    assert "not used by this run: ditto.epochs, fedprox.mu" in caplog.text


def test_the_settings_that_a_run_recorded_can_be_run_again(tmp_path):
    out = tmp_path / "r"
    job = ["num-rounds=1", "num-clients=3", "train.local-epochs=1"]
    run_inline(out, "method=ditto", "ditto.epochs=2", *job)
    assert settings(str(out / "settings.toml")).options.epochs == 2
    assert settings("--resume", "--out", str(out)).options.epochs == 2


def test_a_recorded_run_can_be_resumed_with_a_part_turned_off(tmp_path):
    toml = to_toml(settings("dp.noise-multiplier=1", "dp.max-epsilon=3").flat())
    (tmp_path / "settings.toml").write_text(toml)
    again = settings(str(tmp_path / "settings.toml"))
    assert (again.dp.noise_multiplier, again.dp.max_epsilon) == (1, 3)
    settings("--resume", "--out", str(tmp_path), "dp.noise-multiplier=0")


def test_a_sweep_may_hold_the_options_of_its_methods(tmp_path):
    path = write_file(
        tmp_path / "sweep.toml",
        'method = ["fedavg", "fedprox"]\nfedprox.mu = 0.1\nsweep.title = "t"\n',
    )
    assert len(read_plan(path).points) == 2
    assert len(read_plan(path, ['method=["fedavg", "local"]']).points) == 2
    refused(lambda: read_plan(path, ["ditto.epochs=2"]), r"ditto\.epochs", UserError)
    path.write_text(path.read_text() + "ditto.epochs = 2\n")
    refused(lambda: read_plan(path), r"ditto\.epochs", UserError)


def test_a_number_is_text_where_text_is_wanted():
    assert settings("model.head=3").model.head == "3"
    assert settings("model.head='3'").model.head == "3"


@pytest.mark.parametrize(
    ("rounds", "every"), [(1, 1), (9, 1), (10, 1), (50, 5), (100, 10), (2000, 10)]
)
def test_a_plot_has_ten_points_where_rounds_allow(rounds, every):
    assert with_defaults({"num-rounds": rounds}).evaluate_every == every
    assert read_settings({**default_config(), "num-rounds": rounds}).evaluate_every == every
    for given in (7, 0):
        chosen = with_defaults({"num-rounds": rounds, "evaluate-every": given})
        assert chosen.evaluate_every == given


@pytest.mark.parametrize(("rounds", "said"), [(2, True), (4, False)])
def test_a_plot_of_one_point_says_so(rounds, said, write_run):
    """Every second round has an evaluation."""
    run = read_run(write_run(rounds=rounds))
    for figure in (*measure_figure(run, THEME).values(), comparison_figure({"r": [run]}, THEME)):
        assert ("one evaluation" in figure.panels[0].note) == said

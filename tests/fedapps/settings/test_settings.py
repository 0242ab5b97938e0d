import re
import tomllib
from argparse import Namespace

import pytest

from fedapps.commands.parser import main
from fedapps.commands.run import settings_of
from fedapps.errors import UserError
from fedapps.lab import api
from fedapps.lab.charts.theme import THEME
from fedapps.lab.results.run_plots import comparison_figure, measure_figure
from fedapps.lab.sweeps.plan import read_plan
from fedapps.models.options import ModelOptions
from fedapps.records.reader import read_run
from fedapps.runs.prepare import with_defaults
from fedapps.settings.reading import default_config, read_settings
from fedapps.settings.rules import COUNTED, GIVEN, refuse
from fedapps.settings.settings import Settings
from fedapps.settings.tables import PARTS
from fedapps.strategies import SuPerFedOptions
from fedapps.toml_text import flatten_toml, parse_assignment, read_toml, to_toml, toml_value
from tests.helpers import ROOT, lacking, refused, run_inline, write_file

#: The settings of the default task: `auto` values are replaced.
DEFAULT = Settings(evaluate_every=5, model=ModelOptions("mlp", start="random"))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"method": "superfed"}, "method = 'superfed': did you mean 'superfed-"),
        ({"method": "FedAvg"}, "method = 'FedAvg': did you mean 'fedavg'"),
        ({"method": "SCAFFOLD"}, "method = 'SCAFFOLD': did you mean 'scaffold'"),
        ({"num-round": 3}, "unknown setting 'num-round': did you mean 'num-rounds'?"),
        (
            {"sweep.minutes": 1, "seed": [0, 1]},
            "sweep.minutes: belongs to a sweep: start the file with `fedapps sweep FILE`",
        ),
        ({"superfed.mo": 1.0}, "unknown setting 'superfed.mo': did you mean 'superfed.mu'?"),
        ({"num-rounds": "ten"}, "num-rounds = 'ten': must be a whole number"),
        ({"num-rounds": 2.5}, "num-rounds = 2.5: must be a whole number"),
        ({"num-rounds": True}, "num-rounds = True: must be a whole number"),
        ({"resume": 1}, "resume = 1: must be true or false"),
        ({"model.name": False}, "model.name = False: must be text"),
        ({"train.momentum": "much"}, "train.momentum = 'much': must be a number"),
        ({"num-rounds": 0}, "num-rounds = 0: choose a value in [1, inf)"),
        ({"seed": -1}, "seed = -1: choose a value in [0, inf)"),
        ({"train.learning-rate": 0.0}, "train.learning-rate = 0.0: choose a value in (0, inf)"),
        (
            {"method": "superfed-mm", "superfed.start": 1.5},
            "superfed.start = 1.5: choose a value in [0, 1]",
        ),
        ({"method": "fedprox", "fedprox.mu": -1}, "fedprox.mu = -1.0: choose a value in [0, inf)"),
        (
            {"data.partition": "pathologic"},
            "data.partition = 'pathologic': did you mean 'pathological'?",
        ),
        ({"data.alpha": -1}, "data.alpha = -1"),
        (
            {"method": "aaggff-s", "aaggff.base": "fedadm"},
            "aaggff.base = 'fedadm': did you mean 'fedadam'?",
        ),
        (
            {"method": "aaggff-s", "aaggff.cdf": "normale"},
            "aaggff.cdf = 'normale': did you mean 'normal'?",
        ),
        (
            {"method": "aaggff-d", "aaggff.base": "fedprox", "fedprox.mu": -1},
            "fedprox.mu = -1.0: choose a value in [0, inf)",
        ),
        ({"train.lr-decay-every": 0}, "train.lr-decay-every = 0: choose a value in [1, inf)"),
        ({"device": "gpu"}, "device = 'gpu': choose one of auto, cpu, cuda, mps, xpu"),
        ({"form": "printedd"}, "form = 'printedd': did you mean 'printed'"),
        ({"rounds.late": "keep"}, "rounds.late = 'keep': no reply is late without deadline"),
        *(
            ({"rounds.late": "partial", **more}, "rounds.late = 'partial': clients end early for")
            for more in ({}, {"rounds.over-select": 0.3})
        ),
        ({"time.speed": "file"}, "time.speed = 'file', file = '': a file needs"),
        ({"time.file": "x.csv"}, "time.speed = 'auto', file = 'x.csv': a file needs"),
        ({"secure.neighbours": 8}, "secure.neighbours = 8: a server that lies could choose them"),
        ({"num-rounds": "3"}, "num-rounds = '3': must be a whole number"),
    ],
)
def test_errors_take_one_line_and_name_the_setting_and_the_fix(config, message):
    refused(lambda: read_settings(config), f"^{re.escape(message)}", UserError)


def test_missing_keys_have_defaults_and_whole_numbers_become_floats():
    assert read_settings({}) == DEFAULT
    assert read_settings(default_config()) == DEFAULT
    settings = read_settings({"timeout": 5, "method": "superfed-lm", "superfed.nu": 2})
    assert settings.timeout == 5.0
    assert settings.options.nu == 2.0
    assert isinstance(settings.options.nu, float)


def test_a_wrapping_method_reads_and_keeps_the_options_of_its_base():
    given = {"method": "aaggff-d", "aaggff.base": "propfair", "propfair.base": "fedprox"}
    given |= {"fedprox.mu": 0.5, "aaggff.cdf": "gumbel", "aaggff.prior": "samples"}
    settings = read_settings(given)
    assert settings.base.base.options.mu == 0.5
    assert given.items() <= (flat := settings.flat()).items()
    assert "fedopt.tau" not in flat
    assert read_settings(flat) == settings
    assert read_settings({"method": "term"}).flat()["fedavg.weights"] == "samples"


def test_toml_round_trip():
    config = default_config() | {
        "out": 'C:\\dir "x"\n\ttab\x01é',
        "seed": 10**12,
        "train.learning-rate": 1e-7,
    }
    assert flatten_toml(tomllib.loads(to_toml(config))) == config


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("a=3", ("a", 3)),
        ("a.b=0.5", ("a.b", 0.5)),
        ("a=true", ("a", True)),
        ("a=text", ("a", "text")),
        ('a="3"', ("a", "3")),
        ("a=/x/y=z", ("a", "/x/y=z")),
    ],
)
def test_assignments(text, want):
    assert parse_assignment(text) == want


@pytest.mark.parametrize("text", ["fedavg", "=3", " = 4"])
def test_text_that_is_not_an_assignment_is_refused(text):
    refused(lambda: parse_assignment(text), "write a setting as key=value", UserError)


@pytest.mark.parametrize(("name", "why"), [("a", "no such file"), ("b", "cannot be read as TOML")])
def test_broken_files(name, why, tmp_path):
    (tmp_path / "b").write_text("a = = 3")
    refused(lambda: read_toml(tmp_path / name), why, UserError)


# --- what does not go together: an example of every rule ------------------------------


PRIVATE = {"dp.noise-multiplier": 1.0}
SITES = {"sites.labels": "a,b", "sites.shape": "1,8,8", "task": "classification"}
#: Settings that each rule refuses, in the order of the tables, and how the line begins.
REFUSED = [
    ({"client-store": "message"}, "client-store = 'message': a resumed run"),
    ({"until": 3, "checkpoint-every": 0}, "until = 3: a paused run"),
    ({"evaluate-train": True, **PRIVATE}, "evaluate-train = true: losses on training samples"),
    ({"evaluate-train": True, "secure.on": True}, "evaluate-train = true: secure sums hide"),
    ({"sites.client": "name", **SITES}, "num-clients = 0: with sites.client = 'name'"),
    ({"model.name": "mlp, two-nn"}, "model.name = 'mlp, two-nn': fedavg needs one net"),
    (
        {"method": "local", "model.name": "mlp, two-nn", "model.adapter": "lora"},
        "model.adapter = 'lora': is for one net, and clients have several",
    ),
    (
        {"method": "local", "model.name": "mlp, two-nn", "model.weights": "w"},
        "model.weights = 'w': are those of one net",
    ),
    ({"model.lora-rank": 4}, "model.adapter = 'none': with lora-rank"),
    (
        {"num-new-clients": 6, "num-clients": 6},
        "num-new-clients = 6, but there are 6 clients",
    ),
    (
        {"clients-per-round": 2, "robust.rule": "trimmed-mean"},
        "clients-per-round = 2, but robust.rule = 'trimmed-mean' with num-malicious = 1 needs 3",
    ),
    ({"method": "fedbuff", "rounds.deadline": 1.0}, "rounds.deadline and rounds.over-select are"),
    ({"rounds.deadline": 1.0, "secure.on": True}, "secure.on = true: a round without its late"),
    ({"method": "fedbuff", "time.speed": "off"}, "time.speed = 'off': method fedbuff depends"),
    ({"keep-best": True, "evaluate-every": 0}, "keep-best = true: evaluate-every = 0 has one"),
    ({"early-stopping": 2, **PRIVATE}, "early-stopping = 2: scores on validation samples are"),
    ({"keep-best": True, "checkpoint-every": 0}, "keep-best = true: what clients store"),
    (
        {"max-update-norm": 2.0, "secure.on": True, **PRIVATE},
        "max-update-norm = 2.0: with secure.on = true, dp.clipping-norm",
    ),
    (
        {"method": "superfed-mm", "form": "printed", "model.start": "zero"},
        "model.start = 'zero': superfed-mm mixes",
    ),
    ({"task": "tabular", "data.synthetic": "x"}, "data.synthetic = 'x': task 'tabular'"),
    (
        {"data.synthetic": "x", "data.synthetic-use": "mix", **SITES},
        "data.synthetic-use = 'mix': the sites do not have",
    ),
    ({"data.group": "sex", **SITES}, "data.group = 'sex': sites with their own"),
    ({"data.group": "sex"}, "data.group = 'sex': task 'digits' is not scored by group"),
    (
        {"data.group-split": "a", "data.partition": "natural"},
        "data.group-split = 'a': is for files",
    ),
    (
        {"num-new-clients": 2, "num-clients": 6, "clients-per-round": 5},
        "clients-per-round = 5, but there are 4 clients that are not new: choose 1..4, or 0 for all",
    ),
    (
        {"num-clients": 4, "clients-per-round": 5},
        "clients-per-round = 5, but there are 4 clients: choose 1..4, or 0 for all",
    ),
    (
        {"method": "aaggff-s", "num-clients": 6, "clients-per-round": 3},
        "clients-per-round = 3, but aaggff-s needs all 6 clients",
    ),
    (
        {"secure.on": True, "num-clients": 6, "clients-per-round": 2},
        "secure.on = true: a secure sum has at least 3 clients, and a round has 2",
    ),
    (
        {"min-replies": 4, "num-clients": 6, "clients-per-round": 3},
        "min-replies = 4, but a round has 3 clients: choose 1..3",
    ),
]


def test_every_rule_has_an_example():
    assert len(REFUSED) == len({*GIVEN, *COUNTED})


@pytest.mark.parametrize(("given", "line"), REFUSED)
def test_what_does_not_go_together_is_refused_in_one_line(given, line):
    refused(lambda: refuse(read_settings(given), COUNTED), f"^{re.escape(line)}", UserError)


def test_the_way_out_is_open():
    for given in ({"until": 3}, {"method": "superfed-mm"}, {"num-clients": 6, **SITES}):
        refuse(read_settings({"num-clients": 20, **given}), COUNTED)


# --- form=printed: a method as its paper prints it ------------------------------------


#: The options of the algorithms, by method: Algorithm 2.2 of SuPerFed's chapter (nu is
#: that of model-mixing, Table 2.2), (3.12) without a cap, Figures 1 and 2 of FedBoost,
#: Algorithm 2 of FedFW.
SUPERFED = {
    "nu": 1.0,
    "init": "own",
    "step_scale": 1.0,
    "catch_up": 0,
    "lambda_choice": "own",
    "tune": 0,
}
PRINTED = {
    "superfed-mm": SUPERFED,
    "superfed-lm": SUPERFED,
    "aaggff-s": {"cap": 0.0, "step": "paper", "ridge": "paper", "prior": "uniform", "rate": 1.0},
    "aaggff-d": {"cap": 0.0, "step": "paper", "prior": "uniform", "rate": 1.0},
    "fedboost": {
        "centred": False,
        "mirror": "entropy",
        "draw": "independent",
        "gradient": "sampled",
    },
    "aflboost": {
        "centred": False,
        "mirror": "entropy",
        "draw": "independent",
        "gradient": "sampled",
    },
    "fedfw-plus": {"dual_step": 0.0, "schedule": "convex", "local_steps": 1},
    "fedevg": {"persistent": False, "weights": "sign", "langevin_steps": 1},
    "ffgb": {"residual": True, "weights": "uniform"},
    "ifca": {"start": "random"},
    "fedcgan": {"hidden": 64},
    "fedcvae": {"hidden": 64},
}


def options(method, **given):
    return read_settings({"method": method, **given}).options


@pytest.mark.parametrize("method", PRINTED)
def test_every_option_of_the_algorithm_is_the_papers(method):
    found = options(method, form="printed")
    assert {name: getattr(found, name) for name in PRINTED[method]} == PRINTED[method]
    usual = options(method)
    differ = {name for name, value in PRINTED[method].items() if getattr(usual, name) != value}
    assert differ == set(type(found).PRINTED) & set(PRINTED[method])


def test_what_is_given_stays_also_a_default():
    assert options("superfed-mm", form="printed", **{"superfed.nu": 0.0}).nu == 0.0
    assert options("fedboost", form="printed", **{"fedboost.centred": True}).centred
    chosen = {"nu": 0.0, "init": "global", "step_scale": 2.0, "catch_up": 1}
    assert SuPerFedOptions() == SuPerFedOptions(**chosen, lambda_choice="shrunk", tune=8)
    assert SuPerFedOptions.printed(nu=2.0) == SuPerFedOptions(**{**SUPERFED, "nu": 2.0})


def test_a_default_in_flowers_run_configuration_is_as_if_not_given():
    """Also where a table of the user's own is not in it."""
    place = "tool.flwr.app.config."
    written = read_toml(ROOT / "pyproject.toml")
    flower = {key.removeprefix(place): v for key, v in written.items() if key.startswith(place)}
    given = {**flower, "method": "superfed-mm"}
    assert read_settings(given).options == SuPerFedOptions()
    given |= {"form": "printed", "superfed.start": 0.2}
    assert read_settings(given).options == SuPerFedOptions.printed(start=0.2)
    del given["superfed.init"]  # as an option that the file does not know
    assert read_settings(given).options == SuPerFedOptions.printed(start=0.2)


def test_a_run_records_the_options_and_can_be_repeated_from_its_record(tmp_path):
    job = [
        "method=superfed-mm",
        "num-rounds=1",
        "num-clients=3",
        "data.max-samples=90",
        "form=printed",
    ]
    assert main(["run", *job, "superfed.nu=0", "--out", str(tmp_path / "a")]) == 0
    record = read_toml(tmp_path / "a" / "settings.toml")
    assert (record["form"], record["superfed.nu"]) == ("usual", 0.0)
    assert record["superfed.init"] == "own"
    assert main(["run", str(tmp_path / "a" / "settings.toml"), "--out", str(tmp_path / "b")]) == 0
    one, other = (tmp_path / name / "clients.csv" for name in "ab")
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"method": "superfed-mm"}, False),
        ({"method": "superfed-mm", "superfed.nu": 2.0}, False),  # its other options are set
        ({"method": "aaggff-d", "aaggff.base": "superfed-mm"}, False),
        ({"method": "fedprox"}, True),
        (with_defaults({"method": "superfed-mm"}).flat(), True),  # settings.toml of a run
    ],
)
def test_it_is_said_where_it_changes_nothing(caplog, tmp_path, given, said):
    job = write_file(tmp_path / "job.toml", to_toml(given))
    flags = {"resume": False, "out": None, "trust": False, "nodes": None, "until": None}
    settings_of(Namespace(settings=[str(job), "form=printed"], **flags))
    assert ("form = 'printed' changes nothing" in caplog.text) == said


def test_every_value_of_a_record_is_chosen():
    given = {"method": "aaggff-d", "aaggff.cap": 3.0, "aaggff.step": "sampled"}
    record = read_settings(given).flat() | {"versions.flwr": "1.42.0", "form": "printed"}
    found = read_settings(record).options
    assert (found.cap, found.step) == (3.0, "sampled")


def test_a_wrapped_method_takes_its_printed_form_too():
    given = {"method": "aaggff-d", "aaggff.base": "superfed-mm", "form": "printed"}
    settings = read_settings(given)
    assert settings.base is not None
    assert settings.base.options == SuPerFedOptions.printed()
    assert (settings.options.cap, settings.form, settings.base.form) == (0.0, "usual", "usual")


# --- what is not used is refused or named ---------------------------------------------


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

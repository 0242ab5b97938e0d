import re
import tomllib

import pytest

from fedapps.errors import UserError
from fedapps.models.options import ModelOptions
from fedapps.settings.reading import default_config, read_settings
from fedapps.settings.settings import Settings
from fedapps.toml_text import flatten_toml, parse_assignment, read_toml, to_toml
from tests.helpers import refused

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
    settings = read_settings(
        {"method": "aaggff-d", "aaggff.base": "fedprox", "fedprox.mu": 0.5, "aaggff.cdf": "gumbel"}
    )
    assert settings.base.options.mu == 0.5
    flat = settings.flat()
    assert flat["fedprox.mu"] == 0.5
    assert flat["aaggff.base"] == "fedprox"
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

"""``form=printed``: a method as its paper prints it, where our defaults differ."""

import pytest

from fedapps.commands.parser import main
from fedapps.runs.prepare import with_defaults
from fedapps.settings.reading import read_settings
from fedapps.strategies import SuPerFedOptions
from fedapps.toml_text import read_toml
from tests.helpers import ROOT

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
def test_it_is_said_where_it_changes_nothing(caplog, given, said):
    with_defaults({**given, "form": "printed"})
    assert ("form = 'printed' changes nothing" in caplog.text) == said


def test_a_wrapped_method_takes_its_printed_form_too():
    given = {"method": "aaggff-d", "aaggff.base": "superfed-mm", "form": "printed"}
    settings = read_settings(given)
    assert settings.base is not None
    assert settings.base.options == SuPerFedOptions.printed()
    assert (settings.options.cap, settings.form, settings.base.form) == (0.0, "usual", "usual")

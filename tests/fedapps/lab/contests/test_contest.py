"""The stages of a contest: rates, race, final, with scores that are made up; and one
with real runs, whose test samples are not read before the final.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedapps.algorithms.common.seeds import generator
from fedapps.clients.base.scores import HALF
from fedapps.errors import RunFailed, UserError
from fedapps.lab.contests import setup
from fedapps.lab.contests.contest import Contest
from fedapps.lab.contests.page import write_verdict
from fedapps.lab.contests.plan import affordable_rounds, stage_seconds
from fedapps.lab.contests.setup import run_contest, start
from fedapps.lab.contests.state import State, load_state
from fedapps.lab.contests.trials import (
    PORTFOLIO,
    RATE,
    Contestant,
    Trial,
    Trials,
    assembled,
    in_process,
)
from fedapps.lab.contests.verdict import Outcome, elsewhere, outcome, verdict_text
from fedapps.lab.results.seeds import Interval
from fedapps.lab.results.simultaneous import Decision
from fedapps.lab.sweeps.execution import Way
from fedapps.records.reader import read_run
from fedapps.runs.assembly import build_task
from fedapps.settings.reading import read_settings
from fedapps.toml_text import read_toml
from tests.fedapps.lab.contests.sites import write_sites
from tests.helpers import run_inline
from tests.pretended_device import pretended_cuda

METHODS = ("local", "fedavg", "finetune", "ditto", "ifca", "apfl")


class Interrupted(Exception):
    pass


class Fake(Trials):
    """Trials that cost time by their rounds, with scores by method and rate: the best
    rate of each method is 1 unless given, and clients, seeds and the rest add noise.
    """

    def __init__(self, out, means, best=None, stop_after=10**9):
        super().__init__({}, out, 16, lambda runs: ())
        self.means, self.best, self.stop_after = means, best or {}, stop_after
        self.log, self.at, self.now, self.new = [], {}, 0.0, set()

    def done(self, trial):
        return self.at.get(trial.folder, 0)

    def run(self, trials):
        for trial in self.missing(trials):
            if len(self.log) >= self.stop_after:
                raise Interrupted
            self.now += trial.until - self.done(trial)
            self.at[trial.folder] = trial.until
            self.log.append(trial)
            self.costs[trial.who.method] = [1.0, 0.0]
            self.ended(trial, "")

    def newcomers(self, trial):
        return {f"site {trial.seed % 2}"} & self.new

    def scores(self, trial, measure):
        assert self.at[trial.folder] == trial.until, "scores of another round"
        rng = generator(0, f"fake {trial.folder}", trial.until)
        away = np.log10(trial.who.rate / self.best.get(trial.who.method, 1.0))
        mean = self.means[trial.who.method] - 0.1 * away**2
        client = np.linspace(-0.1, 0.1, 8)
        noise = 0.002 * rng.normal(size=8)
        own = {f"site {k}": float(mean + client[k] + noise[k]) for k in range(8)}
        return {k: v for k, v in own.items() if k not in self.newcomers(trial)}


MEANS = dict(zip(METHODS, (0.7, 0.6, 0.75, 0.8, 0.5, 0.72), strict=True))


def contest(tmp_path, state=None, best=None, stop_after=10**9, budget=0.0, changed=None, **means):
    """A contest with ``MEANS`` but for ``means``; ``changed(trial, measure, scores)``
    returns other scores.
    """
    trials = Fake(tmp_path, MEANS | means, best, stop_after)
    if changed:
        change(trials, changed)
    given = {"seed": 5, RATE: 1.0}
    state = state or State({}, given, 16, budget, list(METHODS), measure="accuracy", delta=0.01)
    return Contest(state, trials, clock=lambda: trials.now)


def change(trials, changed):
    scores = trials.scores
    trials.scores = lambda trial, measure: changed(trial, measure, dict(scores(trial, measure)))


def ended(*given, **more):
    """Return a contest that has run, and its result."""
    one = contest(*given, **more)
    one.run()
    return one, outcome(one)


def test_the_best_wins_and_the_others_are_dropped_but_for_the_baselines(tmp_path):
    one, found = ended(tmp_path)
    assert one.state.leader == "ditto"
    left = {who.method for who in one.contestants()}
    assert set(one.state.finalists) == left == {"ditto", "local", "finetune", "fedavg"}
    assert (found.verdict.kind, found.verdict.method) == ("federate", "ditto")
    # its best rate of the grid, 10 ** 0.25 or its inverse, costs 0.00625
    assert found.here["ditto"].mean == pytest.approx(0.1 - 0.00625, abs=0.003)
    assert "Federate, with ditto" in verdict_text(one, found)
    # the race and the rates are scored on validation samples, the final has fresh seeds
    early = {t.seed for t in one.trials.log if not t.final}
    late = {t.seed for t in one.trials.log if t.final}
    assert not early & late
    assert len(late) == 5


def test_a_method_within_delta_of_finetuning_is_not_worth_it(tmp_path):
    one, found = ended(tmp_path, finetune=0.795)
    assert (one.state.leader, found.verdict.method) == ("ditto", "finetune")


@pytest.mark.parametrize(
    ("spread", "ditto", "local", "start", "others"),
    [
        (0.0, 0.8, 0.7, "Federate, with ditto", "Other sites like these would gain more than that, too"),
        (0.0, 0.8, 0.9, "Train alone.", "The same holds for other sites like these."),
        (0.2, 0.95, 0.9, "Federate, with ditto. At these sites", "For other sites like these no such gain"),
        (0.2, 0.85, 0.9, "Train alone. At these sites", "Other sites like these could gain up to"),
        (0.2, 0.9165, 0.9, "Cannot tell.", ""),
    ],
)  # fmt: skip
def test_the_verdict_is_for_these_sites_and_says_what_holds_for_others(
    tmp_path, spread, ditto, local, start, others
):
    """The leader's gain differs by twice the spread between clients, hardly between
    seeds.
    """

    def split(trial, measure, own):
        away = spread * (trial.who.method == "ditto")
        return {k: v + away * (-1) ** int(k[-1]) for k, v in own.items()}

    text = verdict_text(*ended(tmp_path, ditto=ditto, local=local, changed=split))
    assert text.startswith(start)
    assert others in text
    assert ("ther sites like these" in text) == bool(others)


@pytest.mark.parametrize(
    ("kind", "bounds", "text"),
    [
        ("federate", {"ditto": (0.012, 0.03)}, "would gain more than that, too (1.2 to 3.0"),
        ("federate", {"ditto": (0.008, 0.03)}, "no such gain is shown (0.8 to 3.0"),
        ("alone", {"ditto": (-0.01, 0.004), "fedavg": (-0.1, -0.05)}, "The same holds"),
        ("alone", {"ditto": (-0.1, -0.05), "fedavg": (-0.01, 0.015)}, "could gain up to 1.5"),
        ("cannot tell", {"ditto": (-0.01, 0.02)}, ""),
    ],
)
def test_more_than_one_point_is_what_counts_at_other_sites(kind, bounds, text):
    """The lower bound is what is shown; the largest upper one is what is left open."""
    like = {m: Interval(0.0, 0.0, low, high, 5) for m, (low, high) in bounds.items()}
    found = Outcome(Decision(kind, "ditto"), {}, {}, {}, like, [], {})
    said = elsewhere("accuracy", found, 0.01)
    assert text in said
    assert bool(text) == bool(said)


def test_what_test_samples_leave_open_is_not_decided(tmp_path):
    """Seeds hardly differ, but the halves of the test samples do."""

    def halved(trial, measure, own):
        away = 0.4 * measure.startswith(HALF) * (trial.who.method == "ditto")
        return {k: v + away * (-1) ** int(k[-1]) for k, v in own.items()}

    one, plain = ended(tmp_path)
    change(one.trials, halved)
    found = outcome(one)
    assert found.like == plain.like
    assert found.here["finetune"] == plain.here["finetune"]
    assert plain.here["ditto"].high - plain.here["ditto"].low < 0.01
    assert found.here["ditto"].high - found.here["ditto"].mean > 2 * 0.4 / np.sqrt(8)
    assert (plain.verdict.kind, found.verdict.kind) == ("federate", "cannot tell")
    assert "times the test samples would tell" in verdict_text(one, found)
    change(one.trials, lambda trial, measure, own: {} if HALF in measure else own)
    assert outcome(one).here == plain.like


@pytest.mark.parametrize("method", [m for m in PORTFOLIO if m != "fedbn"])
def test_every_method_scores_half_of_the_test_samples_and_nothing_else_changes(method, tmp_path):
    table = method == "histogram-boosting"
    job = {"method": method, "num-rounds": 1, "num-clients": 12, "clients-per-round": 4}
    job |= {"task": "tabular"} if table else {"train.local-epochs": 1}
    for part in ("test", "test-halves"):
        run_inline(tmp_path / part, **job, **{"data.score-on": part})
    plain, halved = (read_run(tmp_path / part).clients for part in ("test", "test-halves"))
    half = ["half-test-accuracy"] + ["half-test-auroc"] * table
    assert all(set(row) - set(half) == set(other) for row, other in zip(halved, plain, strict=True))
    for row, other in zip(halved, plain, strict=True):
        assert {key: row[key] for key in other} == other
    assert any(row["half-test-accuracy"] != row["accuracy"] for row in halved)


def test_a_client_that_diverges_in_the_final_is_named_and_in_no_mean(tmp_path):

    def lost(trial, measure, own):
        if trial.final and trial.who.method == "ditto" and trial.seed % 2:
            del own["site 0"]  # the site that scores worst
        return own

    one, whole = ended(tmp_path)
    change(one.trials, lost)
    found = outcome(one)
    assert found.clients == [f"site {k}" for k in range(1, 8)]
    named = "In no mean, since a finalist diverged there: site 0 (ditto 3 of 5 seeds)."
    assert f"7 clients. {named}" in verdict_text(one, found)
    for method, table in whole.scores.items():
        np.testing.assert_array_equal(found.scores[method], table[:, 1:])
    change(one.trials, lambda trial, measure, own: {k: own[k] for k in own if k < "site 2"})
    with pytest.raises(RunFailed, match=r"has 1 clients .* site 0 \(ditto 3 of 5 seeds\)"):
        outcome(one)


def test_clients_that_are_new_with_a_seed_have_not_diverged(tmp_path):
    one = contest(tmp_path)
    one.trials.new = {"site 0", "site 1"}
    one.run()
    found = outcome(one)
    assert (one.state.unscored, found.diverged, found.verdict.method) == ({}, {}, "ditto")
    assert np.isnan(found.scores["ditto"]).sum() == 5
    assert "8 clients." in verdict_text(one, found)


def test_who_diverges_in_the_race_is_dropped_and_named_and_the_contest_goes_on(tmp_path):

    def lost(trial, measure, own):
        if trial.seed == 7:
            own.pop({"finetune": "site 3", "local": "site 5"}.get(trial.who.method), None)
        return own

    one, found = ended(tmp_path, changed=lost)
    assert one.state.unscored == {"site 5": "training alone diverges"}
    dropped = [why for who, why in one.state.dropped.items() if "finetune" in who]
    assert dropped == ["failed, or diverged at site 3"] * 2
    assert set(one.state.finalists) == {"ditto", "fedavg", "local"}
    assert found.verdict.method == "ditto"


@pytest.mark.parametrize("spread", [0.95, 1.05])
def test_who_is_dropped_is_behind_at_the_level_of_one_of_ten_steps(tmp_path, spread):
    """Three steps with three seeds and one for each seed up to ten share 5 %. apfl is
    0.05 behind at all clients alike, differs by c between its seeds, and 0.0025 (delta
    / 4) does not count: it is dropped if -0.05 + t(99.5 %, 2 degrees) c / sqrt(3) is
    below -0.0025. At 5 % each it would be at 3.4 times that c, too.
    """
    c = spread * 0.0475 * np.sqrt(3) / 9.924843

    def scores(trial, measure, own):
        away = 0.03 + c * (trial.seed - 7)  # seeds 6, 7 and 8
        return dict.fromkeys(own, MEANS[trial.who.method] + away * (trial.who.method == "apfl"))

    one = contest(tmp_path, changed=scores)
    one.state.rates = {m: [1.0] for m in METHODS if m != "ifca"}
    one.state.most_seeds = 3
    one.race()
    assert one.state.leader == "ditto"
    assert list(one.state.dropped) == ["apfl at 1"] * (spread < 1)


def test_a_best_rate_at_the_edge_extends_the_grid_once(tmp_path):
    one = contest(tmp_path, best={"local": 1.0, "ditto": 100.0, "apfl": 0.3})
    one.choose_rates()
    log = one.trials.log
    rates = {m: sorted({t.who.rate for t in log if t.who.method == m}) for m in METHODS}
    assert [len(rates[m]) for m in ("local", "fedavg", "ditto")] == [7, 4, 6]
    assert one.state.rates["ditto"][0] == max(rates["ditto"])
    assert one.state.rates["local"] == [1.0]
    lengths = {(t.who.method == "local", t.until) for t in log}
    assert lengths == {(True, 16), (False, 2)}


@pytest.mark.parametrize("after", [3, 20, 40, 60, 75, 100])
def test_an_interrupted_contest_goes_on_to_the_same_end(tmp_path, after):
    whole, _ = ended(tmp_path)
    (tmp_path / "contest.json").unlink()
    first = contest(tmp_path, stop_after=after)
    with pytest.raises(Interrupted):
        first.run()
    then = contest(tmp_path, load_state(tmp_path) or first.state)
    then.trials.at = dict(first.trials.at)
    then.run()
    for name in ("rates", "steps", "dropped", "leader", "finalists", "race_gains"):
        assert getattr(then.state, name) == getattr(whole.state, name), name
    log = first.trials.log + then.trials.log
    assert len({(t.folder, t.until) for t in log}) == len(log) == len(whole.trials.log)


@pytest.mark.parametrize("budget", [650.0, 900.0, 1200.0])
def test_the_budget_is_kept(tmp_path, budget):
    close = {m: 0.7 + 0.001 * k for k, m in enumerate(METHODS)}
    one, more = (ended(tmp_path, budget=most, **close)[0] for most in (budget, 10 * budget))
    assert one.elapsed() <= 1.05 * budget
    assert len(more.state.race_seeds) >= len(one.state.race_seeds)


def test_rounds_are_cut_until_the_budget_suffices():
    state = State({}, {}, 0, 1000.0, list(METHODS), costs={m: [1.0, 0.1] for m in METHODS})
    state.start_seconds = 0.5
    rounds = affordable_rounds(state, 2, 400)
    assert rounds < 400
    assert sum(stage_seconds(state, 2, rounds)) <= 1000
    rates, race, final = stage_seconds(state, 2, rounds + 8)
    assert 1.1 * (rates + race) > 600 or 1.1 * (rates + race + final) > 1000
    state.budget = 10.0
    with pytest.raises(UserError, match="even with 8 rounds the contest takes about"):
        affordable_rounds(state, 2, 400)


# --- real runs ------------------------------------------------------------------------

SETTINGS = {
    "task": "regression",
    "data.natural-id": "client",
    "data.label": "y",
    "data.part": "part",
    "num-rounds": 8,
    "num-clients": 0,
    "clients-per-round": 0,
    "train.batch-size": 16,
}


def written(folder, poison=False, left_out=()):
    """Write three sites of a known truth; ``poison``: with wrong test targets.
    ``left_out``: a site and a part without rows.
    """
    folder.mkdir()
    sites = [f"site-{k:02d}" for k in (1, 2, 3)]
    write_sites(folder / "data.csv", sites, sites if poison else (), 100, left_out)
    return {**SETTINGS, "data.source": str(folder / "data.csv")}


def run_until_final(given, out, **more):
    """Return a contest of few methods whose race has ended."""
    one = start(given, out, in_process, methods=("fedavg",), most_seeds=3, **more)
    one.choose_rates()
    one.race()
    return one


@pytest.mark.slow
def test_test_samples_change_nothing_before_the_final(tmp_path):
    plain = run_until_final(written(tmp_path / "plain"), tmp_path / "plain" / "out")
    given, out = written(tmp_path / "poison", poison=True), tmp_path / "out"
    one = run_until_final(given, out)
    for name in ("rates", "tried", "steps", "leader", "delta", "race_gains"):
        assert getattr(one.state, name) == getattr(plain.state, name), name
    one.final()  # reads them
    assert min(min(own.values()) for own in one.final_scores()["fedavg"].values()) < -50
    again = run_until_final(given, out)
    again.run()  # nothing is left to do
    assert again.state.done
    whole, halves = again.final_scores()["fedavg"], again.final_scores(HALF)["fedavg"]
    for seed, own in whole.items():
        assert own.keys() == halves[seed].keys()
        assert all(own[k] != halves[seed][k] for k in own)
    found, text = write_verdict(again)
    page = (out / "verdict.html").read_text()
    assert text.split(".")[0] in page
    # a site whose wrong test targets count as divergence is in no mean
    assert "site-01" in found.clients
    assert "site-01" in page
    settings = read_settings(read_toml(out / "winner.toml"))
    method = found.verdict.method or "local"
    assert (settings.num_rounds, settings.data.score_on, settings.method) == (8, "test", method)
    with pytest.raises(UserError, match="holds a contest with other settings"):
        start({**given, "seed": 1}, out, in_process, methods=("fedavg",))


@pytest.mark.parametrize(
    ("given", "methods", "said"),
    [
        ({"method": "fedavg"}, (), "choose"),
        ({"data.score-on": "validation"}, (), "choose"),
        ({"task": "text", "text.score-on": "test"}, (), "choose"),
        ({"data.split-seed": "seed"}, (), "choose"),
        ({}, ("dito",), "did you mean 'ditto'"),
        # what no contestant uses
        ({"dp.max-epsilon": 3, "num-clients": 3}, ("fedavg",), "dp.max-epsilon = 3"),
        ({"ffgb.local-steps": 3, "num-clients": 3}, ("fedavg",), "ffgb.local-steps = 3"),
    ],
)
def test_what_cannot_be_a_contest_is_refused(tmp_path, given, methods, said):
    with pytest.raises(UserError, match=said):
        start(given, tmp_path, in_process, methods=methods)


def test_the_race_scores_samples_by_which_no_method_chooses(tmp_path):
    for base in (written(tmp_path / "data"), {}):
        settings, task = assembled(base, "finetune")
        plain = build_task(replace(settings, data=replace(settings.data, score_on="test")))
        others = [assembled(base, method)[1] for method in ("superfed-mm", "local")]
        for k in range(3):
            parts = [*map(list, task.split(k, settings.num_clients))]
            train, chosen_by, scored = map(set, parts)
            assert not chosen_by & scored
            assert [train, chosen_by | scored] == [
                *map(set, plain.split(k, settings.num_clients)[:2])
            ]
            for other in others:
                assert [*map(list, other.split(k, settings.num_clients))] == parts


def test_a_client_without_validation_samples_is_named_and_the_others_are_scored(tmp_path):
    said = []
    given = written(tmp_path / "data", left_out=("site-02", "validation"))
    one = start(given, tmp_path / "out", in_process, methods=("fedavg",), say=said.append)
    assert one.state.unscored == {"site-02": "no validation samples"}
    assert said == ["site-02 is left out of the race: no validation samples"]
    trial = Trial(Contestant("finetune", 0.02), 1, 2)
    one.trials.run([trial])
    assert not one.state.errors
    assert set(one.trials.scores(trial, "rmse")) == {"site-01", "site-03"}
    (failure,) = one.trials.read(trial).failures  # it trains
    assert failure.client == "site-02"
    assert "no samples to be scored on" in failure.reason


def test_every_method_of_a_contest_has_the_same_samples(tmp_path):
    """Tasks on tables and some methods have no validation samples by default."""
    methods = ("local", "fedavg", "finetune", "histogram-boosting")
    one = start({"task": "regression", "num-clients": 4}, tmp_path, in_process, methods=methods)
    assert not one.state.left_out
    splits = []
    for method in methods:
        settings, task = assembled(one.trials.base, method)
        assert settings.data.validation == 0.2
        splits.append([[part.tolist() for part in task.split(k, 4)] for k in range(4)])
    assert all(split == splits[0] for split in splits)
    assert all(len(part) for client in splits[0] for part in client)


def test_ranks_of_times_count_in_points(tmp_path):
    """A contest on task survival: Cox models, scored by concordance. Its race is
    skipped.
    """
    given = {"task": "survival", "num-clients": 4, "num-rounds": 8, "train.local-epochs": 1}
    one = start(given, tmp_path, in_process, methods=())
    one.choose_rates()
    state = one.state
    assert (state.measure, state.delta) == ("concordance", 0.01)
    state.race_ended, state.leader = True, "fedavg"
    state.finalists = {method: state.rates[method][0] for method in ("fedavg", "local")}
    state.race_gains = {str(Contestant("fedavg", state.finalists["fedavg"])): 0.0}
    one.run()
    found, text = write_verdict(one)
    assert "1.0 points" in text
    assert "of concordance over training alone" in text
    assert found.gains["fedavg"].shape == (5, 4)


def test_a_net_without_normalisation_is_said_once(tmp_path, caplog):
    one = start({"task": "regression", "num-clients": 3}, tmp_path, in_process, methods=("fedbn",))
    assert "no normalisation layer" in one.state.left_out["fedbn"]
    assert "normalisation" not in caplog.text


def test_contestants_are_named_by_method_and_rate():
    assert str(Contestant("ditto", 0.05)) == "ditto at 0.05"
    assert str(Contestant("histogram-boosting")) == "histogram-boosting"


def test_a_number_of_jobs_below_zero_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"-1: choose 1 or more"):
        run_contest({}, tmp_path, way=Way(jobs=-1))


@pytest.mark.parametrize(("device", "dealt"), [("cuda", (4, ["1", "3"])), ("cpu", (9, []))])
def test_a_contest_is_dealt_over_the_gpus(device, dealt, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    asked = []

    def start(given, out, execute, *, jobs, **more):
        asked.append((jobs, execute.processes, execute.gpus))
        raise Interrupted

    monkeypatch.setattr(setup, "start", start)
    with pretended_cuda(monkeypatch, gpus=2), pytest.raises(Interrupted):
        run_contest(
            {"device": device, "num-rounds": 8}, tmp_path, way=Way(jobs=9, gpus_per_run=0.5)
        )
    number, gpus = dealt
    assert asked == [(number, number, gpus)]

"""The folds of a contest with rows that are made up; and contests with real runs, whose
test rows change no choice.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedapps.algorithms.common.seeds import generator
from fedapps.clients.base.scores import ROWS
from fedapps.errors import RunFailed, UserError
from fedapps.lab.charts.canvas import Dots
from fedapps.lab.contests import setup
from fedapps.lab.contests.contest import CHOICE, REFERENCE, Contest
from fedapps.lab.contests.page import gains_figure, write_verdict
from fedapps.lab.contests.plan import DEAR, planned
from fedapps.lab.contests.rows import below, read_rows
from fedapps.lab.contests.setup import base_of, measure_of, run_contest, start
from fedapps.lab.contests.state import State, load_state
from fedapps.lab.contests.trials import (
    PORTFOLIO,
    RATE,
    Contestant,
    Trial,
    Trials,
    assembled,
    portfolio,
)
from fedapps.lab.contests.verdict import leader, outcome, rate_of, verdict_text
from fedapps.lab.sweeps.execution import Way
from fedapps.records.files import write_text
from fedapps.records.reader import read_run
from fedapps.runs.assembly import build_task
from fedapps.settings.reading import read_settings
from fedapps.toml_text import read_toml
from tests.fedapps.lab.contests.sites import in_process, write_sites
from tests.helpers import run_inline
from tests.pretended_device import pretended_cuda

METHODS = ("local", "fedavg", "finetune", "ditto", "ifca", "apfl")
MEANS = dict(zip(METHODS, (0.7, 0.6, 0.75, 0.8, 0.5, 0.72), strict=True))


class Interrupted(Exception):
    pass


class Fake(Trials):
    """Trials that cost time by their rounds, whose rows have a mean by method and rate:
    the best rate of each method is 1 unless given; clients differ, and rows have noise.
    """

    def __init__(self, out, means, best=None, stop_after=10**9):
        super().__init__({}, out, 16, 5, lambda runs: ())
        self.means, self.best, self.stop_after = means, best or {}, stop_after
        self.log, self.at, self.now, self.slow = [], {}, 0.0, 1.0

    def done(self, trial):
        return self.at.get(trial.folder, 0)

    def run(self, trials):
        for trial in self.missing(trials):
            if len(self.log) >= self.stop_after:
                raise Interrupted
            self.now += self.slow * (trial.until - self.done(trial))
            self.at[trial.folder] = trial.until
            self.log.append(trial)
            self.costs[trial.who.method] = [1.0, 0.0]
            self.ended(trial, "")

    def rows(self, trial):
        assert self.at[trial.folder] == trial.until, "rows of another round"
        rng = generator(0, f"fake {trial.folder}", trial.until)
        away = np.log10((trial.who.rate or 1.0) / self.best.get(trial.who.method, 1.0))
        mean = self.means[trial.who.method] - 0.1 * away**2
        right = mean + np.linspace(-0.1, 0.1, 8)[:, None] + 0.002 * rng.normal(size=(8, 10))
        tables = np.stack([np.tile([0.0, 1.0], (8, 5)), right, right], 2)
        return {f"site {k}": tables[k] for k in range(8)}


def contest(tmp_path, state=None, best=None, stop_after=10**9, budget=0.0, changed=None, **means):
    """A contest with ``MEANS`` but for ``means``; ``changed(trial, rows)`` returns
    other rows.
    """
    tmp_path.mkdir(exist_ok=True)
    trials = Fake(tmp_path, MEANS | means, best, stop_after)
    if changed:
        change(trials, changed)
    given = {"seed": 5, RATE: 1.0}
    state = state or State({}, given, 16, budget, list(METHODS), measure="accuracy", why="told")
    return Contest(state, trials, clock=lambda: trials.now)


def change(trials, changed):
    rows = trials.rows
    trials.rows = lambda trial: changed(trial, dict(rows(trial)))


def ended(*given, **more):
    """Return a contest that has run, and its result."""
    one = contest(*given, **more)
    one.run()
    return one, outcome(one)


def test_the_best_is_chosen_in_every_fold_and_tested_beside_the_baselines(tmp_path):
    one, found = ended(tmp_path)
    assert (found.kind, found.method, found.leader) == ("use", "ditto", "ditto")
    assert set(found.gains) == {CHOICE, "finetune", "fedavg"}
    # its best rate of the grid is that of training alone, 1
    assert found.gains[CHOICE].mean == pytest.approx(0.1, abs=0.002)
    text = verdict_text(one, found)
    assert text.startswith("Use ditto. At these sites it gains 10.0 points of accuracy")
    assert "worth it" in text
    assert "5 of 5 folds, 8 clients; accuracy, told." in text
    log = one.trials.log
    assert {t.fold for t in log} == set(range(5))
    # in each fold the choice and the three are tested, and nobody else
    for fold in range(5):
        tested = {t.who.method for t in log if t.final and t.fold == fold}
        assert tested == {"ditto", "finetune", "fedavg", "local"}
    # two rates of six methods, then half of who leads, and always the three
    reached = [len({t.folder for t in log if t.until >= n and not t.final}) / 5 for n in (4, 8, 16)]
    assert reached[0] == 12
    assert reached[0] > reached[1] > reached[2] >= 4


def test_test_rows_change_no_choice_and_held_out_rows_no_score(tmp_path):
    def lying(final, trial, rows):
        better = 0.5 * (trial.final is final and trial.who.method == "ifca")
        return {k: own + np.array([0, better, 0]) for k, own in rows.items()}

    plain, found = ended(tmp_path)
    tested, _ = ended(tmp_path, changed=lambda *given: lying(True, *given))
    assert [one["choice"] for one in tested.state.ended] == ["ditto"] * 5
    chosen, then = ended(tmp_path, changed=lambda *given: lying(False, *given))
    assert (chosen.state.ended[0]["choice"], then.leader) == ("ifca", "ifca")
    assert (then.kind, then.method) == ("either", "local")
    assert then.gains[CHOICE].mean == pytest.approx(-0.2, abs=0.01)
    assert found.gains["finetune"] == then.gains["finetune"]
    assert plain.state.ended[0]["tried"]["local"] == chosen.state.ended[0]["tried"]["local"]


TREES = {"histogram-boosting": 0.81, "local-boosting": 0.79}


def with_trees(path, changed=None, **means):
    one = contest(path, changed=changed, **{**TREES, **means})
    one.state.methods += TREES
    one.run()
    return one, outcome(one)


def test_trees_have_to_be_better_than_trees_alone(tmp_path):
    """The held-out samples of a fold say which model training alone is."""
    one, found = with_trees(tmp_path)
    assert [(f["choice"], f["alone"]) for f in one.state.ended] == [tuple(TREES)] * 5
    assert found.gains[CHOICE].mean == pytest.approx(0.02, abs=0.002)
    assert one.state.ended[0]["gain"] == pytest.approx(0.02, abs=0.004)
    assert found.scores[REFERENCE] == pytest.approx(0.79, abs=0.002)
    assert found.scores["local"] == pytest.approx(0.7, abs=0.002)
    assert set(found.gains) == {CHOICE, "finetune", "fedavg"}
    assert {t.until for t in one.trials.log if t.who.method in TREES} == {16}
    worse, alone = with_trees(tmp_path, **{"histogram-boosting": 0.75, "ditto": 0.75})
    assert (alone.kind, alone.method) == ("alone", "local-boosting")
    assert verdict_text(worse, alone).startswith("Train alone with local-boosting. At")

    def lying(trial, rows):
        better = 0.1 * (trial.final and trial.who.method == "local")
        return {k: own + np.array([0, better, 0]) for k, own in rows.items()}

    _, same = with_trees(tmp_path, lying)
    assert same.gains[CHOICE] == found.gains[CHOICE]


def test_trees_have_their_own_rounds_and_bring_trees_alone(tmp_path):
    """A tree takes three rounds, so those of nets would leave it a few trees."""
    base = base_of({"task": "tabular"})
    trials = Trials(base, tmp_path, 24, 5, in_process)
    for method, rounds in (("local", 24), *((name, 152) for name in TREES)):
        config = trials.config(Trial(Contestant(method), 0, 24))
        assert (config["num-rounds"], config["evaluate-every"]) == (rounds, rounds)
    # of 152 rounds some are done: no run of 24
    folder = tmp_path / "cells" / Trial(Contestant("histogram-boosting"), 0, 24).folder
    (folder / "checkpoint" / "95").mkdir(parents=True)
    write_text(folder / "summary.json", '{"status": "interrupted"}')
    assert trials.missing([Trial(Contestant("histogram-boosting"), 0, 24)])
    known, *_ = portfolio(base, ["histogram-boosting"])
    assert known == ["local", "fedavg", "finetune", *reversed(TREES)]
    assert portfolio(base, ["ditto"])[0] == ["local", "fedavg", "finetune", "ditto"]


@pytest.mark.parametrize(
    ("noise", "ditto", "start", "said"),
    [
        (0.0, 0.715, "Use ditto.", "worth it, more than the 1.0 points that count"),
        (0.0, 0.706, "Train alone.", "no method gains 1.0 points of accuracy"),
        (
            0.35,
            0.73,
            "Either will do. The expected gain of ditto over training alone is 4.4 points",
            "use it, which is wrong",
        ),
        (
            0.35,
            0.68,
            "Either will do. The expected gain of ditto over training alone is -",
            "train alone, which is wrong",
        ),
        (0.05, 0.7125, "Use ditto.", "perhaps a small one"),
    ],
)
def test_there_is_always_a_recommendation(tmp_path, noise, ditto, start, said):
    """Every other row of one method has more, of the others less. All methods but
    ditto are at training alone, or below.
    """

    def noisy(trial, rows):
        rng = generator(0, f"noise {trial.folder}")
        away = noise * (trial.who.method == "ditto") * trial.final
        return {k: own + away * rng.normal(size=(10, 1)) * [0, 1, 0] for k, own in rows.items()}

    worse = {"fedavg": 0.65, "finetune": 0.67, "apfl": 0.5}
    one, found = ended(tmp_path, ditto=ditto, changed=noisy, **worse)
    text = verdict_text(one, found)
    assert text.startswith(start)
    assert said in text
    assert found.method == ("ditto" if "se it" in text or "Use" in text else "local")


def test_a_price_is_taken_off_the_gain(tmp_path):
    one, found = ended(tmp_path)
    one.state.price = 0.2
    dear = outcome(one)
    assert (found.kind, dear.kind, dear.method) == ("use", "alone", "local")
    assert "no method gains 21.0 points of accuracy" in verdict_text(one, dear)
    assert "Federation has a price of 20.0 points." in verdict_text(one, dear)


def test_the_chance_of_being_wrong_counts_the_price(tmp_path):
    def noisy(trial, rows):
        rng = generator(0, f"noise {trial.folder}")
        away = 0.35 * (trial.who.method == "ditto") * trial.final
        return {k: own + away * rng.normal(size=(10, 1)) * [0, 1, 0] for k, own in rows.items()}

    worse = {"fedavg": 0.65, "finetune": 0.67, "apfl": 0.5}
    one, found = ended(tmp_path, ditto=0.73, changed=noisy, **worse)
    ours = found.gains[CHOICE]
    one.state.price = ours.mean / 2
    dear = outcome(one)
    assert (found.kind, dear.kind, dear.method) == ("either", "either", "ditto")
    free, priced = (below(ours.mean - price, ours.deviation)[0] for price in (0, ours.mean / 2))
    assert f"a chance of {100 * priced:.0f} %" in verdict_text(one, dear)
    assert priced > 1.5 * free


def test_of_methods_that_as_many_folds_chose_the_one_with_the_larger_gain_is_recommended(tmp_path):
    """Also if training alone is better than both on the samples that they are chosen
    by.
    """
    one = contest(tmp_path)
    one.state.ended = [
        {"choice": method, "gain": gain, "gains": {method: gain, "local": 0.0}}
        for method, gain in (("ditto", -0.1), ("apfl", -0.05))
    ]
    assert leader(one) == "apfl"


def test_folds_that_choose_differently_are_told(tmp_path):
    def turns(trial, rows):
        better = 0.3 * (trial.fold < 2 and not trial.final and trial.who.method == "apfl")
        return {k: own + np.array([0, better, 0]) for k, own in rows.items()}

    one, found = ended(tmp_path, changed=turns)
    assert found.leader == "ditto"
    assert set(found.gains) == {CHOICE, "finetune", "fedavg"}
    assert found.gains[CHOICE].mean == pytest.approx(0.6 * 0.1 + 0.4 * 0.02, abs=0.003)
    text = verdict_text(one, found)
    assert "Chosen by folds: ditto (3), apfl (2)." in text
    assert "At these sites the choice gains" in text  # the number is of both methods
    assert rate_of(one, "ditto") == 1.0


def test_below_the_trivial_predictor_is_said_first(tmp_path):
    def rare(trial, rows):  # one of ten has label 1
        return {k: np.column_stack([np.arange(10) == 3, own[:, 1:]]) for k, own in rows.items()}

    one, found = ended(tmp_path, changed=rare)
    assert found.scores["trivial"] == pytest.approx(0.9)
    text = verdict_text(one, found)
    assert text.startswith("Nothing that was tried is surely better than the trivial")
    assert "times the rows" not in text


@pytest.mark.parametrize("apart", [0.0, 3.0])
def test_the_trivial_predictor_may_know_all_clients_or_one(tmp_path, apart):
    """Labels of noise: the mean of all clients is nearer than that of one, unless the
    clients' differ.
    """
    labels = [
        apart * np.arange(8)[:, None] + generator(f, "y").normal(size=(8, 3)) for f in "abcde"
    ]
    means = np.mean(labels, axis=(1, 2)), np.mean(labels, axis=2)

    def noise(trial, rows):
        others = [f for f in range(5) if f != trial.fold]
        y, found = labels[trial.fold], {}
        for k, client in enumerate(rows):
            of_all, of_one = (m[others].mean(0) for m in (means[0], means[1][:, k]))
            best = of_one if apart or trial.who.method == "local" else of_all
            error = (y[k] - best) ** 2 + 0.001  # a bit worse than the mean that it knows
            found[client] = np.column_stack([y[k], error < 1, error])
        return found

    one = contest(tmp_path, changed=noise)
    one.state.measure = "rmse"
    one.run()
    found = outcome(one)
    best = max(score for name, score in found.scores.items() if name != "trivial")
    assert best < found.scores["trivial"] < best + 0.001
    assert verdict_text(one, found).startswith("Nothing that was tried is surely better")


@pytest.mark.parametrize("apart", [0.0, 3.0])
def test_luck_is_not_better_than_the_trivial_predictor(tmp_path, apart):
    """Values of noise order classes a bit better than by chance, but for one method."""

    def luck(trial, rows):
        value = generator(7, f"luck {trial.fold}").normal(size=(8, 10))
        return {
            k: np.column_stack(
                [own[:, 0], own[:, 1], v + apart * (trial.who.method == "ditto") * own[:, 0]]
            )
            for (k, own), v in zip(rows.items(), value, strict=True)
        }

    one = contest(tmp_path, changed=luck)
    one.state.measure = "auroc"
    one.run()
    found = outcome(one)
    assert found.scores[CHOICE] > found.scores["trivial"] == 0.5
    first = "Nothing that was tried is surely better than the trivial predictor"
    assert verdict_text(one, found).startswith(first) is found.useless is (not apart)


def test_what_a_budget_cuts_is_told(tmp_path):
    one, found = ended(tmp_path)
    whole = verdict_text(one, found)
    one.state.folds, one.state.left_out = 3, {"ifca": DEAR, "fedbn": "no such layer"}
    text = verdict_text(one, found)
    assert "The budget left 3 of 5 folds, 6 of 7 methods" in text
    assert "Fewer folds train on fewer rows" in text
    assert "budget" not in whole
    assert "Fewer" not in whole


@pytest.mark.parametrize(("whole", "told"), [(16, False), (32, False), (40, True)])
def test_rounds_that_a_budget_cuts_are_told(tmp_path, whole, told):
    one, found = ended(tmp_path, ditto=0.708, fedavg=0.65, finetune=0.67, apfl=0.5)
    one.state.given["num-rounds"] = whole
    one.state.delta = 0.0
    found = replace(found, kind="either")
    text = verdict_text(one, found)
    assert (f"The budget left 16 of {whole} rounds" in text) is (whole > 16)
    assert ("times the rows would tell" in text) is not told


def test_the_picture_shows_estimates_of_clients_gains(tmp_path):
    def luck(trial, rows):  # sites gain by chance: their rows tell little
        away = generator(1, f"luck {trial.folder}").normal(size=(8, 10))
        away *= trial.who.method != "local"
        return {
            k: own + np.column_stack([0 * x, x, 0 * x])
            for (k, own), x in zip(rows.items(), away, strict=True)
        }

    one, found = ended(tmp_path, changed=luck)
    gain = found.gains[CHOICE]
    shapes = gains_figure(one, found).panels[0].shapes
    drawn = {round(s.points[0, 0], 6) for s in shapes if isinstance(s, Dots)}
    estimates = {round(100 * value, 6) for value, _ in gain.shrunk().values()}
    assert estimates <= drawn
    assert not drawn & {round(100 * value, 6) for value, _ in gain.clients.values()}


def test_a_client_that_diverges_in_a_fold_is_named_and_in_no_mean(tmp_path):
    def lost(trial, rows):
        if trial.final and trial.who.method == "ditto" and trial.fold % 2:
            del rows["site 0"]  # the site that scores worst
        return rows

    one, whole = ended(tmp_path)
    change(one.trials, lost)
    found = outcome(one)
    assert found.missing == {"site 0": "the choice diverged"}
    assert list(found.gains[CHOICE].clients) == [f"site {k}" for k in range(1, 8)]
    assert "7 clients" in verdict_text(one, found)
    assert "In no mean: site 0 (the choice diverged)." in verdict_text(one, found)
    for k, own in found.gains["finetune"].clients.items():
        assert own == whole.gains["finetune"].clients[k]
    change(one.trials, lambda trial, rows: {k: rows[k] for k in rows if k < "site 2"})
    with pytest.raises(
        RunFailed, match=r"1 clients have a score .* site 0 \(the choice diverged\)"
    ):
        outcome(one)


def test_who_diverges_at_a_client_is_no_choice(tmp_path):
    def lost(trial, rows):
        if trial.who.method == "ditto" and trial.until == 16:
            rows.pop("site 3")
        return rows

    _, found = ended(tmp_path, changed=lost)
    assert found.leader == "finetune"
    with pytest.raises(RunFailed, match="local failed at every rate"):
        ended(tmp_path / "none", changed=lambda trial, rows: {})


def test_a_best_rate_at_the_edge_extends_the_grid_once(tmp_path):
    one = contest(tmp_path, best={"ditto": 100.0, "apfl": 0.3})
    one.fold(0)
    log = [t for t in one.trials.log if not t.final]
    rates = {m: sorted({t.who.rate for t in log if t.who.method == m}) for m in METHODS}
    assert [len(rates[m]) for m in ("local", "fedavg", "ditto", "apfl")] == [7, 3, 5, 5]
    assert max(rates["ditto"]) == pytest.approx(10**1.5)
    assert len(one.state.ended[0]["tried"]["ditto"]) == 5
    one, _ = ended(tmp_path / "gone", best={"local": 10**3.0})
    assert one.state.ended[0]["tried"]["local"].keys() >= {"316.2"}


@pytest.mark.parametrize("after", [3, 20, 40, 90, 150])
def test_an_interrupted_contest_goes_on_to_the_same_end(tmp_path, after):
    whole, _ = ended(tmp_path)
    (tmp_path / "contest.json").unlink()
    first = contest(tmp_path, stop_after=after)
    with pytest.raises(Interrupted):
        first.run()
    then = contest(tmp_path, load_state(tmp_path) or first.state)
    then.trials.at = dict(first.trials.at)
    then.run()
    for mine, others in zip(then.state.ended, whole.state.ended, strict=True):
        assert {**mine, "seconds": 0} == {**others, "seconds": 0}
    log = first.trials.log + then.trials.log
    assert len({(t.folder, t.until) for t in log}) == len(log) == len(whole.trials.log)


def test_a_budget_is_kept_by_fewer_folds(tmp_path):
    """The whole contest takes five times the seconds of a fold."""
    whole, _ = ended(tmp_path)
    fold = whole.state.ended[0]["seconds"]
    one, found = ended(tmp_path / "b", budget=3.5 * fold)
    assert len(one.state.ended) == 3
    assert "3 of 5 folds, then the time was over, 8 clients" in verdict_text(one, found)
    assert one.elapsed() <= 3.5 * fold
    late, _ = ended(tmp_path / "c", budget=1.2 * fold)  # the machine was slower than thought
    assert [len(x["methods"]) for x in late.state.ended] == [6, 3]
    assert [x["choice"] for x in late.state.ended] == ["ditto", "finetune"]


def test_a_small_budget_gets_fewer_rounds_folds_and_methods():
    many = [*METHODS, "histogram-boosting"]
    state = State({}, {}, 0, 0.0, many, costs={m: [1.0, 0.1] for m in METHODS})
    plans = []
    for state.budget in (1e9, 1e4, 4e3, 2e3, 1e3, 300):
        plans.append(planned(state, 2, 400))
    sizes = [(len(m), folds, rounds) for m, folds, rounds in plans]
    assert sizes[0] == (7, 5, 400)
    assert sizes == sorted(sizes, reverse=True)
    assert plans[-1][0] == ["local", "fedavg", "finetune", "histogram-boosting"]
    assert plans[-1][1] == 2
    # trees that take long are left out before the contest is refused
    state.tree_rounds, state.budget = 500, 300
    assert planned(state, 2, 400)[0] == ["local", "fedavg", "finetune"]
    state.budget = 3.0
    with pytest.raises(UserError, match="even with 8 rounds, two folds and 3 methods"):
        planned(state, 2, 400)


@pytest.mark.parametrize("method", [m for m in PORTFOLIO if m != "fedbn"])
def test_every_method_reports_its_test_rows_and_nothing_else_changes(method, tmp_path):
    table = method == "histogram-boosting"
    job = {"method": method, "num-rounds": 1, "num-clients": 12, "clients-per-round": 4}
    job |= {"task": "tabular"} if table else {"train.local-epochs": 1}
    for name, asked in (("plain", False), ("rows", True)):
        run_inline(tmp_path / name, **job, **{"data.test-rows": asked})
    plain, with_rows = (read_run(tmp_path / name) for name in ("plain", "rows"))
    assert plain.clients == with_rows.clients
    assert plain.evaluation == with_rows.evaluation
    assert not (tmp_path / "plain" / f"{ROWS}.csv").exists()
    rows = read_rows(tmp_path / "rows" / f"{ROWS}.csv")
    for row in with_rows.clients:
        own = rows[row["client"]]
        assert len(own) == row["test-samples"]
        assert own[:, 1].mean() == pytest.approx(row["accuracy"])
        if table:
            assert ((own[:, 2] > 0) == (own[:, 0] == 1)).mean() == row["accuracy"]


@pytest.mark.parametrize("method", ["fedavg", "histogram-boosting", "local-boosting"])
def test_rows_of_folds_hold_the_labels_of_the_table(method, tmp_path):
    """Also where numbers are learnt as deviations from a mean of the fold."""
    table = np.column_stack([np.arange(60) % 3, np.arange(60) % 7, 100 + np.arange(60) ** 1.5])
    text = [f"{k:.0f},{x:.0f},{y:.6f}" for k, x, y in table]
    (tmp_path / "table.csv").write_text("\n".join(["site,x,y", *text]))
    job = {"task": "regression", "data.source": str(tmp_path / "table.csv"), "data.label": "y"}
    job |= {"data.natural-id": "site", "data.test-rows": True, "data.folds": 2, "num-rounds": 2}
    found = []
    for fold in range(2):
        out = tmp_path / str(fold)
        run_inline(out, **job, method=method, **{"data.fold": fold})
        found += read_rows(out / f"{ROWS}.csv").values()
    rows = np.concatenate(found)
    np.testing.assert_allclose(np.sort(rows[:, 0]), table[:, 2], rtol=1e-5)
    np.testing.assert_allclose((rows[:, 0] - rows[:, 1]) ** 2, rows[:, 2], rtol=1e-3, atol=1e-3)


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


@pytest.mark.slow
def test_wrong_test_targets_change_no_choice_of_a_real_contest(tmp_path):
    """The data name their test rows, so that folds are seeds."""
    given, out = written(tmp_path / "poison", poison=True), tmp_path / "out"
    plain = start(written(tmp_path / "plain"), tmp_path / "plain" / "out", in_process, methods=())
    one = start(given, out, in_process, methods=())
    for contest in (plain, one):
        assert contest.state.same_rows
        contest.state.folds = 2
        contest.run()
    for mine, others in zip(plain.state.ended, one.state.ended, strict=True):
        for name in ("tried", "choice", "gains", "finalists"):
            assert mine[name] == others[name], name
    assert outcome(one).scores[CHOICE] < -50 < outcome(plain).scores[CHOICE]
    found, text = write_verdict(one)
    page = (out / "verdict.html").read_text()
    assert text.split(".")[0] in page
    assert "site-01" in page
    assert "2 of 2 seeds" in text
    settings = read_settings(read_toml(out / "winner.toml"))
    assert (settings.num_rounds, settings.data.score_on, settings.method) == (
        8,
        "test",
        found.method,
    )
    again = start(given, out, in_process, methods=())
    again.run()  # nothing is left to do
    assert again.state.ended == one.state.ended
    dear = start(given, out, in_process, methods=(), delta=0.5, price=9.0)
    dear.run()
    assert (dear.state.delta, dear.state.price) == (0.5, 9.0)
    assert outcome(dear).kind == "alone"
    cheap = start(given, out, in_process, methods=())
    assert (cheap.state.delta, cheap.state.price) == (one.state.delta, 0.0)
    cheap.state.usual, cheap.state.delta = 0.0, 0.3  # as a contest of before has it
    cheap.save()
    assert start(given, out, in_process, methods=()).state.delta == 0.3
    with pytest.raises(UserError, match="holds a contest with other settings"):
        start({**given, "seed": 1}, out, in_process, methods=("fedavg",))


@pytest.mark.parametrize(
    ("given", "methods", "said"),
    [
        ({"method": "fedavg"}, (), "choose"),
        ({"data.score-on": "validation"}, (), "choose"),
        ({"task": "text", "text.score-on": "test"}, (), "choose"),
        ({"data.split-seed": "seed"}, (), "choose"),
        ({"num-clients": 1, "clients-per-round": 0}, (), "one client"),
        ({"data.folds": 3}, (), "a contest chooses it"),
        ({"num-new-clients": 1}, (), "a contest chooses it"),
        ({"data.natural-id": "y", "data.label": "y"}, (), "is the label, too"),
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


def test_a_client_without_validation_samples_is_not_chosen_by_and_trains(tmp_path):
    given = written(tmp_path / "data", left_out=("site-02", "validation"))
    one = start(given, tmp_path / "out", in_process, methods=("fedavg",))
    trial = Trial(Contestant("finetune", 0.02), 1, 2)
    one.trials.run([trial])
    assert not one.state.errors
    assert set(one.trials.rows(trial)) == {"site-01", "site-03"}
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "measure", "unit"),
    [
        ({"task": "survival", "train.local-epochs": 1}, "concordance", "points"),
        ({"task": "tabular"}, "auroc", "points"),
        ({"task": "regression"}, "rmse", "of RMSE"),
        ({"partition": "iid"}, "accuracy", "points"),
        ({"task": "text"}, "accuracy", "points"),
    ],
)
def test_every_kind_of_task_has_a_measure_and_folds(tmp_path, given, measure, unit):
    given = {f"data.{k}" if k == "partition" else k: v for k, v in given.items()}
    given |= {"num-clients": 4, "num-rounds": 8, "clients-per-round": 0}
    given |= {"train.local-epochs": 1} if "task" not in given else {}
    one = start(given, tmp_path, in_process, methods=())
    assert one.state.measure == measure
    assert one.state.same_rows == (given.get("task") == "text")
    one.state.folds = one.trials.folds = 2
    if one.state.same_rows:
        one.trials.folds = 0
    one.run()
    found, text = write_verdict(one)
    assert unit in text
    assert len(found.gains[CHOICE].clients) == 4
    assert found.scores[CHOICE] < 0 if measure == "rmse" else 0.1 < found.scores[CHOICE] < 1


def test_a_file_of_columns_is_a_table_and_its_label_decides(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        f"{k % 3},{x:.3f},{'yes' if x > 0 else 'no'},{k % 30},{k % 2}"
        for k, x in enumerate(rng.normal(size=90))
    ]
    (tmp_path / "table.csv").write_text("\n".join(["site,x,word,many,few", *rows]))
    base = {"data.source": str(tmp_path / "table.csv"), "data.natural-id": "site"}
    for label, task in (
        ("x", "regression"),
        ("word", "tabular"),
        ("many", "regression"),
        ("few", "tabular"),
    ):
        assert base_of({**base, "data.label": label})["task"] == task
    assert base_of({**base, "data.label": "few", "task": "regression"})["task"] == "regression"
    (tmp_path / "table.csv").write_text("\n".join(["site,x,word,many,few", *rows, "1,5x,no,1,1"]))
    odd = r"'x': 1 of 91 rows hold text where.*first: row 92 .*task = 'tabular'"
    with pytest.raises(UserError, match=odd):
        base_of({**base, "data.label": "x"})
    (tmp_path / "table.csv").write_text("\n".join(["site,x,word,many,few", *rows, ",1.5,no,1,1"]))
    given = base_of({**base, "data.label": "x"})
    with pytest.raises(UserError, match="'site': 1 samples have no value in it"):
        start(given, tmp_path / "out", in_process)
    plain = {"data.source": "digits", "data.natural-id": "", "data.label": ""}
    assert base_of(plain)["task"] == "classification"


@pytest.mark.parametrize(
    ("labels", "measure", "said"),
    [
        ([0] * 50 + [1] * 50, "auroc", "50 %"),
        ([0] * 94 + [1] * 6, "auroc", "94 %"),
        ([0] * 40 + [1] * 30 + [2] * 30, "accuracy", "40 %"),
        ([0] * 71 + [1] * 9 + [2] * 20, "macro-recall", "71 %"),
    ],
)
def test_the_measure_suits_the_classes(labels, measure, said):
    class Task:
        name = "tabular"
        samples = type("Samples", (), {"labels": np.array(labels)})

        def partition(self, total):
            return np.array_split(np.random.default_rng(0).permutation(100), total)

    name, why, delta = measure_of(Task(), 4)
    assert (name, delta) == (measure, 0.01)
    assert said in why


def test_a_contest_that_was_refused_is_not_in_the_way_of_the_next(tmp_path):
    job = {"num-clients": 3, "num-rounds": 8, "data.max-samples": 200, "train.local-epochs": 1}
    with pytest.raises(UserError, match="raise it"):
        start(job, tmp_path, in_process, methods=(), budget=0.1)
    said = []
    one = start({**job, "seed": 1}, tmp_path, in_process, methods=(), budget=1e4)
    one.state.done = True
    one.save()
    start({**job, "seed": 1}, tmp_path, in_process, methods=(), budget=1e5, say=said.append)
    assert "it has ended; for another budget choose another --out" in said[-1]


def test_classes_that_no_client_has_both_of_are_not_ranked():
    class Task:
        name = "tabular"
        samples = type("Samples", (), {"labels": np.array([0] * 50 + [1] * 50)})

        def partition(self, total):
            return np.array_split(np.arange(100), total)

    assert measure_of(Task(), 4)[0] == "accuracy"
    assert measure_of(Task(), 3)[0] == "auroc"


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


@pytest.mark.parametrize("gain", [{"delta": -0.1}, {"price": np.nan}, {"price": np.inf}])
def test_a_gain_that_counts_is_a_number_from_0(tmp_path, gain):
    with pytest.raises(UserError, match="give a gain, or 0 for the usual one"):
        run_contest({}, tmp_path / "out", way=Way(jobs=1), **gain)
    assert not (tmp_path / "out").exists()


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

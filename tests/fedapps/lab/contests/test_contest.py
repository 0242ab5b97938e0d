"""The folds of a contest and its verdict, with rows that are made up."""

from dataclasses import replace

import numpy as np
import pytest

from fedapps.algorithms.common.seeds import generator
from fedapps.errors import RunFailed, UserError
from fedapps.lab.charts.canvas import Dots
from fedapps.lab.contests.contest import CHOICE, REFERENCE, Contest
from fedapps.lab.contests.page import gains_figure
from fedapps.lab.contests.plan import DEAR, planned
from fedapps.lab.contests.rows import below
from fedapps.lab.contests.state import State, load_state
from fedapps.lab.contests.trials import RATE, Trials
from fedapps.lab.contests.verdict import leader, outcome, rate_of, verdict_text
from tests.helpers import lacking, refused

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


def ended(*given, measure="accuracy", **more):
    """Return a contest that has run, and its result."""
    one = contest(*given, **more)
    one.state.measure = measure
    one.run()
    return one, outcome(one)


def better(own, more):
    """Return rows of which more are right."""
    return {k: rows + np.array([0, more, 0]) for k, rows in own.items()}


def test_the_best_is_chosen_in_every_fold_and_tested_beside_the_baselines(tmp_path):
    one, found = ended(tmp_path)
    assert (found.kind, found.method, found.leader) == ("use", "ditto", "ditto")
    assert set(found.gains) == {CHOICE, "finetune", "fedavg"}
    # its best rate of the grid is that of training alone, 1
    assert found.gains[CHOICE].mean == pytest.approx(0.1, abs=0.002)
    text = verdict_text(one, found)
    assert text.startswith("Use ditto. At these sites it gains 10.0 points of accuracy")
    assert lacking(text, "worth it", "5 of 5 folds, 8 clients; accuracy, told.") == []
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
        return better(rows, 0.5 * (trial.final is final and trial.who.method == "ifca"))

    plain, found = ended(tmp_path)
    tested, _ = ended(tmp_path, changed=lambda *given: lying(True, *given))
    assert [one["choice"] for one in tested.state.ended] == ["ditto"] * 5
    chosen, then = ended(tmp_path, changed=lambda *given: lying(False, *given))
    assert (then.kind, then.method, then.leader) == ("either", "local", "ifca")
    assert chosen.state.ended[0]["choice"] == "ifca"
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
    assert one.state.ended[0]["gain"] == pytest.approx(0.02, abs=0.004)
    assert (found.gains[CHOICE].mean, found.scores[REFERENCE], found.scores["local"]) == (
        pytest.approx((0.02, 0.79, 0.7), abs=0.002)
    )
    assert set(found.gains) == {CHOICE, "finetune", "fedavg"}
    assert {t.until for t in one.trials.log if t.who.method in TREES} == {16}
    worse, alone = with_trees(tmp_path, **{"histogram-boosting": 0.75, "ditto": 0.75})
    assert (alone.kind, alone.method) == ("alone", "local-boosting")
    assert verdict_text(worse, alone).startswith("Train alone with local-boosting. At")

    def lying(trial, rows):
        return better(rows, 0.1 * (trial.final and trial.who.method == "local"))

    _, same = with_trees(tmp_path, lying)
    assert same.gains[CHOICE] == found.gains[CHOICE]


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
    one, found = doubtful(tmp_path, noise, ditto)
    text = verdict_text(one, found)
    assert text.startswith(start)
    assert said in text
    assert found.method == ("ditto" if "se it" in text or "Use" in text else "local")


def doubtful(tmp_path, noise, ditto):
    """Every other row of ditto has more, of the others less. All other methods are at
    training alone, or below.
    """

    def noisy(trial, rows):
        rng = generator(0, f"noise {trial.folder}")
        away = noise * (trial.who.method == "ditto") * trial.final
        return {k: own + away * rng.normal(size=(10, 1)) * [0, 1, 0] for k, own in rows.items()}

    worse = {"fedavg": 0.65, "finetune": 0.67, "apfl": 0.5}
    return ended(tmp_path, ditto=ditto, changed=noisy, **worse)


def test_a_price_is_taken_off_the_gain(tmp_path):
    one, found = ended(tmp_path)
    one.state.price = 0.2
    dear = outcome(one)
    assert (found.kind, dear.kind, dear.method) == ("use", "alone", "local")
    assert not lacking(
        verdict_text(one, dear),
        "no method gains 21.0 points of accuracy",
        "Federation has a price of 20.0 points.",
    )


def test_the_chance_of_being_wrong_counts_the_price(tmp_path):
    one, found = doubtful(tmp_path, 0.35, 0.73)
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
        return better(
            rows, 0.3 * (trial.fold < 2 and not trial.final and trial.who.method == "apfl")
        )

    one, found = ended(tmp_path, changed=turns)
    assert (found.leader, set(found.gains)) == ("ditto", {CHOICE, "finetune", "fedavg"})
    assert found.gains[CHOICE].mean == pytest.approx(0.6 * 0.1 + 0.4 * 0.02, abs=0.003)
    # the number of the gain is of both methods
    assert not lacking(
        verdict_text(one, found),
        "Chosen by folds: ditto (3), apfl (2).",
        "At these sites the choice gains",
    )
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

    one, found = ended(tmp_path, changed=noise, measure="rmse")
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

    one, found = ended(tmp_path, changed=luck, measure="auroc")
    assert found.scores[CHOICE] > found.scores["trivial"] == 0.5
    first = "Nothing that was tried is surely better than the trivial predictor"
    assert verdict_text(one, found).startswith(first) is found.useless is (not apart)


def test_what_a_budget_cuts_is_told(tmp_path):
    one, found = ended(tmp_path, ditto=0.708, fedavg=0.65, finetune=0.67, apfl=0.5)
    assert lacking(verdict_text(one, found), "budget", "Fewer") == ["budget", "Fewer"]
    one.state.folds, one.state.left_out = 3, {"ifca": DEAR, "fedbn": "no such layer"}
    told = ("The budget left 3 of 5 folds, 6 of 7 methods", "Fewer folds train on fewer rows")
    assert lacking(verdict_text(one, found), *told) == []
    one.state.delta, found = 0.0, replace(found, kind="either")
    for whole, few in ((16, False), (32, False), (40, True)):
        one.state.given["num-rounds"] = whole
        text = verdict_text(one, found)
        assert (f"The budget left 16 of {whole} rounds" in text) is (whole > 16)
        assert ("times the rows would tell" in text) is not few


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
    assert {round(100 * value, 6) for value, _ in gain.shrunk().values()} <= drawn
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
    assert not lacking(
        verdict_text(one, found), "7 clients", "In no mean: site 0 (the choice diverged)."
    )
    for k, own in found.gains["finetune"].clients.items():
        assert own == whole.gains["finetune"].clients[k]
    change(one.trials, lambda trial, rows: {k: rows[k] for k in rows if k < "site 2"})
    refused(
        lambda: outcome(one), r"1 clients have a score .* site 0 \(the choice diverged\)", RunFailed
    )


def test_who_diverges_at_a_client_is_no_choice(tmp_path):
    def lost(trial, rows):
        if trial.who.method == "ditto" and trial.until == 16:
            rows.pop("site 3")
        return rows

    _, found = ended(tmp_path, changed=lost)
    assert found.leader == "finetune"
    refused(
        lambda: ended(tmp_path / "none", changed=lambda trial, rows: {}),
        "local failed at every rate",
        RunFailed,
    )


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


@pytest.mark.parametrize("after", [3, 40, 150])
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
    assert [(len(x["methods"]), x["choice"]) for x in late.state.ended] == [
        (6, "ditto"),
        (3, "finetune"),
    ]


def test_a_small_budget_gets_fewer_rounds_folds_and_methods():
    many = [*METHODS, "histogram-boosting"]
    state = State({}, {}, 0, 0.0, many, costs={m: [1.0, 0.1] for m in METHODS})
    plans = []
    for state.budget in (1e9, 1e4, 4e3, 2e3, 1e3, 300):
        plans.append(planned(state, 2, 400))
    sizes = [(len(m), folds, rounds) for m, folds, rounds in plans]
    assert sizes[0] == (7, 5, 400)
    assert sizes == sorted(sizes, reverse=True)
    assert plans[-1][:2] == (["local", "fedavg", "finetune", "histogram-boosting"], 2)
    # trees that take long are left out before the contest is refused
    state.tree_rounds, state.budget = 500, 300
    assert planned(state, 2, 400)[0] == ["local", "fedavg", "finetune"]
    state.budget = 3.0
    refused(
        lambda: planned(state, 2, 400), "even with 8 rounds, two folds and 3 methods", UserError
    )

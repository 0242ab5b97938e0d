"""Whether verdicts and intervals are right where the answer is known.

    python benchmarks/contest.py contests [--cases null islands ...] [--number 20]
    [--out DIR]
    python benchmarks/contest.py folds [--number 300]
    python benchmarks/contest.py coverage [--number 5000]
    python benchmarks/contest.py worst [--number 200]

contests: each (``fedapps.lab.contests``, six methods, eight rounds, no budget) is on
another draw of a case of ``benchmarks.truths``, 40 rows a client. Finished ones
are kept in DIR, so the command can be stopped and repeated. Printed per case:

    right       of the contests whose best family gains at least 3 delta: the method to
                be used is of a family within delta of the best one
    false       of the contests in which no family gains delta: a verdict that one is
                worth it
    sign        of the verdicts to use one: the exact gain is negative
    hold        of all intervals for these sites: those that hold the exact gains
    regret      mean exact gain that the recommendation gives away, in delta

The exact gain is that of the folds' own models. They are linear, so that each is found
from its predictions at a client's test rows, and its squared error is known.

folds: the intervals alone, in seconds: ridge regression alone against a mixture of it
with the pooled one, in five folds, of K clients whose weights deviate by tau. How often
95 % intervals for these sites hold the exact gain of the folds' models: that of the
rows' variance, Student's over the folds, and the one of a contest, with its width over
that of the rows; by squared error or AUROC.

coverage: how often 95 % intervals of a mean gain contain the truth. Differences d[s, k]
of K clients at S seeds are mu + a_s + b_k + e_sk, normal, with the deviations that a
row names. "These sites" must contain the mean over these clients, "sites like these"
mu. Beside them, for mu: a t interval over the seeds' means. Where each seed has "other
clients", b_sk takes the place of b_k; in "missing" ones a tenth of the values is left
out at random.

worst: how often 95 % intervals of the worst tenth, the worst client and the gap hold
those of the true accuracies, and how far estimates are off. K clients with accuracies
of a Beta law with this mean and deviation have n test samples each; the bootstrap
resamples these.
"""

import json
import logging
import math
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, product
from pathlib import Path
from statistics import fmean
from typing import Any

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import options, show
from benchmarks.truths import Federation, truth
from fedapps.algorithms.common.seeds import generator
from fedapps.algorithms.fairness.shrinkage import statistics, uncertainty
from fedapps.lab.contests.contest import CHOICE, REFERENCE
from fedapps.lab.contests.rows import Rows, gain, measured
from fedapps.lab.contests.setup import start
from fedapps.lab.contests.trials import LOCAL
from fedapps.lab.contests.verdict import USE, outcome
from fedapps.lab.results.seeds import crossed_interval, t_interval
from fedapps.lab.sweeps.pool import Ended, PlannedRun, run_one

FAMILY = {
    "fedavg": "pooled",
    "finetune": "mixture",
    "apfl": "mixture",
    "ditto": "mixture",
    "ifca": "clusters",
    "fedrep": "body",
    LOCAL: "alone",
}
#: Fine-tuning of a net with a body keeps the direction that averaging has found.
IN_BODY = {"finetune": "body"}
METHODS = (LOCAL, "fedavg", "finetune", "ditto", "ifca", "apfl")
SETTINGS = {
    "task": "regression",
    "data.natural-id": "client",
    "data.label": "y",
    "data.drop": "part",
    "data.validation": 0.35,
    "num-rounds": 8,
    "clients-per-round": 0,
    "train.local-epochs": 5,
    "train.batch-size": 16,
}
BODY = {"model.name": "benchmarks.truths:body_net", "model.start": "random"}
CASES = ["null", "islands", "same", "threshold", "clusters", "body", "shift", "wrong-labels"]
Array = NDArray[np.float64]

# --- contests -------------------------------------------------------------------------

#: Rows of a client: 18 of them train in each of five folds, 14 validate, 8 are tested
#: on, more than a linear model has weights.
ROWS, TRAINED = 40, 18


def in_process(runs: Sequence[PlannedRun]) -> Iterable[Ended]:
    """Execute runs here, one after the other; one that fails ends its own trial."""
    for run in runs:
        try:
            yield Ended(run, run_one(run))
        except Exception as error:
            yield Ended(run, {}, f"{type(error).__name__}: {error}")


def contest(name: str, seed: int, folder: Path) -> dict[str, Any]:
    """Run a contest and return what is known of it."""
    federation, began = truth(name, seed), time.process_time()
    folder.mkdir(parents=True, exist_ok=True)
    federation.write(folder / "data.csv", seed, (ROWS, 0, 0))
    given = {**SETTINGS, "data.source": str(folder / "data.csv"), "seed": 1000 * seed}
    methods = METHODS
    if name == "body":  # a linear net with a body, and a method that shares it
        given, methods = {**given, **BODY}, (*METHODS[:-1], "fedrep")
    found = start(given, folder / "contest", in_process, methods=methods)
    found.run()
    result, tested = outcome(found), found.tested()
    risks = {m: exact(federation, seed, folds) for m, folds in tested.items()}
    return {
        "kind": result.kind,
        "method": result.method,
        "intervals": {m: [g.here.low, g.mean, g.here.high] for m, g in result.gains.items()},
        "exact": {m: risks[REFERENCE] - risk for m, risk in risks.items() if m != REFERENCE},
        "cpu-seconds": time.process_time() - began,
    }


def exact(federation: Federation, seed: int, folds: Sequence[Rows]) -> float:
    """Return the mean over clients of the root of the expected squared error, a mean
    over folds, of the models whose predictions at test rows are known.
    """
    risks = []
    for k in range(len(federation.weights)):
        x, y = federation.samples(seed, k, "train", ROWS)
        squares = []
        for fold in folds:
            label, predicted, _ = fold[f"site-{k + 1:02d}"].T
            place = np.abs(y - label[:, None]).argmin(1)
            inputs = np.column_stack([x[place], np.ones(len(place))])
            *w, shift = np.linalg.lstsq(inputs, predicted, rcond=None)[0]
            off = federation.scale[k] ** 2 * ((np.array(w) - federation.weights[k]) ** 2).sum()
            squares.append(federation.noise[k] ** 2 + off + shift**2)
        risks.append(math.sqrt(fmean(squares)))
    return fmean(risks)


def judged(one: dict[str, Any], name: str, seed: int) -> dict[str, Any]:
    """Return whether a contest was right, and how far its numbers are off."""
    federation = truth(name, seed)
    risks, delta = federation.risks(TRAINED), 0.02 * federation.error_of_a_mean
    best = min(risks.values())
    gain = risks["alone"] - best
    near = {family for family, risk in risks.items() if risk <= best + delta}
    use = one["kind"] == USE
    families = {**FAMILY, **(IN_BODY if name == "body" else {})}
    inside = [low <= one["exact"][m] <= high for m, (low, _, high) in one["intervals"].items()]
    choice = one["exact"][CHOICE]
    taken = 0.0 if one["method"] == LOCAL else choice
    return {
        "right": use and families[one["method"]] in near if gain >= 3 * delta else None,
        "false": use and one["intervals"][CHOICE][0] > delta if gain < delta else None,
        "sign": choice < 0 if use else None,
        "hold": inside,
        "regret": (max(choice, 0.0) - taken) / delta,
    }


def contest_rows(given: Any) -> Iterator[list[str]]:
    """Run the missing contests; yield a row per case, and of all."""
    logging.getLogger("fedapps.notes").setLevel(logging.ERROR)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in given.cases}
    for seed, name in product(range(given.number), given.cases):  # stopping is fair
        path = Path(given.out) / f"{name}-{seed}.json"
        if not path.exists():
            folder = path.with_suffix("").absolute()
            path.write_text(json.dumps(contest(name, seed, folder), indent=1), encoding="utf-8")
            shutil.rmtree(folder)
        one = json.loads(path.read_text(encoding="utf-8"))
        found[name].append(one | {"judged": judged(one, name, seed)})
    for name, results in [*found.items(), ("all", list(chain(*found.values())))]:
        yield [name, str(len(results)), *row(results)]


def row(results: list[dict[str, Any]]) -> list[str]:
    """Return the cells of a case."""
    verdicts = [one["judged"] for one in results]
    cells = []
    for key in ("right", "false", "sign"):
        known = [bool(j[key]) for j in verdicts if j[key] is not None]
        cells.append(f"{sum(known)} of {len(known)}" if known else "-")
    inside = list(chain(*(j["hold"] for j in verdicts)))
    cells += [f"{sum(inside)} of {len(inside)}", f"{fmean(j['regret'] for j in verdicts):.2f}"]
    words = [f"{one['kind']} {one['method']}" for one in results]
    counts = {word: words.count(word) for word in sorted(set(words))}
    return [*cells, ", ".join(f"{word}: {count}" for word, count in counts.items())]


# --- intervals of folds ---------------------------------------------------------------

FOLDS, FEATURES = 5, 5


def ridge(x: Array, y: Array) -> Array:
    """Return the weights of ridge regression."""
    return np.linalg.solve(x.T @ x + 2 * np.eye(x.shape[1]), x.T @ y)


def exact_auroc(u: Array, w: Array, points: Array) -> float:
    """Return the AUROC of weights, with labels x w + noise > 0, at many points."""
    yes = points[:, :-1] @ w + points[:, -1] > 0
    ranks = (points[:, :-1] @ u).argsort().argsort() + 1
    n = int(yes.sum())
    return float((ranks[yes].sum() - n * (n + 1) / 2) / (n * (len(yes) - n)))


def one_study(clients: int, rows: int, tau: float, measure: str, repeat: int) -> list[float]:
    """Return whether each interval holds the exact gain of the folds' models, and the
    width of the last one over that of the first.
    """
    rng = generator(repeat, f"folds {clients} {rows} {tau} {measure}")
    w = rng.normal(size=FEATURES)
    weights = w / np.linalg.norm(w) + tau * rng.normal(size=(clients, FEATURES)) / FEATURES**0.5
    x = rng.normal(size=(clients, rows, FEATURES))
    y = np.einsum("knd,kd->kn", x, weights) + rng.normal(size=(clients, rows))
    labels = y if measure == "rmse" else np.where(y > 0, 1.0, -1.0)
    fold = np.stack([rng.permutation(rows) % FOLDS for _ in range(clients)])
    points = rng.normal(size=(3000, FEATURES + 1))
    ours: list[dict[str, Array]] = []
    alone: list[dict[str, Array]] = []
    truths, by_fold = [], []
    for f in range(FOLDS):
        kept = fold != f
        own = np.stack([ridge(x[k][kept[k]], labels[k][kept[k]]) for k in range(clients)])
        pooled = ridge(x[kept], labels[kept])
        pair = 0.7 * pooled + 0.3 * own, own
        for models, found in zip(pair, (ours, alone), strict=True):
            found.append({})
            for k in range(clients):
                tested = ~kept[k]
                predicted, target = x[k][tested] @ models[k], labels[k][tested]
                value = (predicted - target) ** 2 if measure == "rmse" else predicted
                found[-1][str(k)] = np.stack([target, target, value], 1)
        if measure == "rmse":
            risks = [np.sqrt(1 + ((u - weights) ** 2).sum(1)).mean() for u in pair]
            truths.append(float(risks[1] - risks[0]))
        else:
            areas = [
                fmean(exact_auroc(u[k], weights[k], points) for k in range(clients)) for u in pair
            ]
            truths.append(areas[0] - areas[1])
        each = [
            measured([ours[-1][k]], measure)[0] - measured([alone[-1][k]], measure)[0]
            for k in ours[-1]
        ]
        by_fold.append(float(np.nanmean(each)))
    names = [k for k in ours[0] if np.isfinite(measured([one[k] for one in ours], measure)[0])]
    found_gain = gain(ours, alone, names, measure, same=False)
    off, t = abs(found_gain.mean - fmean(truths)), t_interval(by_fold)
    reach = (
        1.959964 * found_gain.here.std,
        (t.high - t.low) / 2,
        found_gain.here.high - found_gain.mean,
    )
    return [*(float(off <= one) for one in reach), reach[2] / reach[0]]


def fold_rows(given: Any) -> Iterator[list[str]]:
    """Yield a row per study."""
    for measure, k, n, tau in product(("rmse", "auroc"), (8, 20, 60), (20, 60, 200), (0.0, 0.5)):
        number = max(given.number * 1000 // max(k * n, 1000), 20)
        studies = [one_study(k, n, tau, measure, repeat) for repeat in range(number)]
        *shares, width = np.mean(studies, axis=0)
        texts = [f"{100 * share:.0f}" for share in shares]
        yield [measure, str(k), str(n), str(tau), str(number), *texts, f"{width:.2f}"]


# --- coverage -------------------------------------------------------------------------

CLIENTS, SEEDS = (8, 20, 60), (3, 5)
#: Deviations of clients, seeds and the rest, and what is special.
STUDIES = (
    (0.0, 0.0, 2.0, ""),
    (0.0, 0.5, 2.0, ""),
    (3.0, 0.0, 2.0, ""),
    (3.0, 0.5, 2.0, ""),
    (0.5, 1.0, 0.5, ""),
    (1.0, 0.5, 0.5, ""),
    (3.0, 0.5, 2.0, "missing"),
    (3.0, 0.5, 2.0, "other clients"),
)


def covered(
    study: tuple[float, float, float, str], shape: tuple[int, int], repeats: int
) -> list[float]:
    """Return the shares in which the three intervals contain the truth, NaN for one
    that does not exist.
    """
    clients, seeds, rest, special = study
    rng = generator(0, f"coverage {study} {shape}")
    inside = np.full((repeats, 3), np.nan)
    for repeat in range(repeats):
        b = clients * rng.normal(size=shape if special == "other clients" else (1, shape[1]))
        table = b + seeds * rng.normal(size=(shape[0], 1)) + rest * rng.normal(size=shape)
        if special == "missing":
            table[rng.random(shape) < 0.1] = np.nan
        means = np.nanmean(table, 1).tolist()
        these = t_interval(means)
        like = these if special == "other clients" else crossed_interval(table)
        for place, (one, target) in enumerate(
            [
                (these, 0.0),
                (None if special == "other clients" else these, b.mean()),
                (like, 0.0),
            ]
        ):
            if one is not None:
                inside[repeat, place] = one.low <= target <= one.high
    # a mean over the repeats that have the interval; of none it is NaN
    known = np.isfinite(inside).sum(0)
    return list(np.where(known > 0, np.nansum(inside, 0) / np.maximum(known, 1), np.nan))


def coverage_rows(given: Any) -> Iterator[list[str]]:
    """Yield a row per study, and number of seeds and clients."""
    for study, s, k in product(STUDIES, SEEDS, CLIENTS):
        shares = covered(study, (s, k), given.number)
        texts = ["-" if share != share else f"{100 * share:.1f}" for share in shares]
        yield [*map(str, (*study, s, k)), *texts]


# --- the worst clients ----------------------------------------------------------------


def worst_rows(given: Any) -> Iterator[list[str]]:
    """Yield a row per number of clients, of samples, and law of accuracies."""
    laws = ((0.8, 0.0), (0.8, 0.05), (0.8, 0.15), (0.95, 0.03))
    for k, n, (mean, std) in product((8, 20, 60), (10, 50, 200), laws):
        rng, samples = generator(0, f"worst {k} {n} {mean} {std}"), np.full(k, n)
        found: dict[str, list[tuple[bool, bool, float, float]]] = {}
        for _ in range(given.number):
            size = mean * (1 - mean) / std**2 - 1 if std else 0.0
            true = rng.beta(mean * size, (1 - mean) * size, k) if std else np.full(k, mean)
            right = rng.binomial(n, true)
            again = statistics(rng.binomial(n, right[:, None] / n, (k, 300)) / n)
            truths = statistics(true[:, None])
            for name, one in uncertainty(right, samples, rng, draws=300).items():
                target = truths[name][0]
                low, high = np.quantile(again[name], [0.025, 0.975])
                held = one.low - 1e-9 <= target <= one.high + 1e-9, low <= target <= high
                off = (one.estimate - target) ** 2, (one.value - target) ** 2
                found.setdefault(name, []).append((*held, *off))
        cells = [str(cell) for cell in (k, n, mean, std)]
        for name in ("tail", "worst", "gap"):
            ours, boot, *squares = np.mean(found[name], axis=0)
            rms = " / ".join(f"{100 * math.sqrt(one):.1f}" for one in squares)
            cells += [f"{100 * ours:.0f} / {100 * boot:.0f}", rms]
        yield cells


def main() -> None:
    """Print a table."""
    given = options(
        __doc__,
        {
            "study": ("contests", "folds", "coverage", "worst"),
            "--cases": CASES,
            "--number": 20,  # of contests or studies, each
            "--out": "results/contest-truths",
        },
    )
    if given.study == "coverage":
        columns = ("clients", "seeds", "rest", "", "S", "K", "t over seeds", "these sites")
        columns += ("sites like these",)
        show("Coverage of 95 % intervals, %", columns, coverage_rows(given))
    elif given.study == "worst":
        columns = ("clients", "samples", "mean", "deviation")
        for name in ("worst tenth", "worst", "gap"):
            columns += (f"{name}: holds, estimate / bootstrap", "error, estimate / measured")
        show("The worst clients: 95 % intervals, %, and errors, points", columns, worst_rows(given))
    elif given.study == "folds":
        columns = ("measure", "clients", "rows", "tau", "studies", "rows' variance")
        columns += ("t over folds", "contest", "its width / that of rows")
        show("Coverage of 95 % intervals of five folds, %", columns, fold_rows(given))
    else:
        columns = ("case", "contests", "right", "false", "sign", "hold", "regret", "verdicts")
        show("Contests with a known answer", columns, contest_rows(given))


if __name__ == "__main__":
    main()

"""Whether verdicts and intervals are right where the answer is known.

    python benchmarks/contest.py contests [--cases null islands ...] [--number 20]
    [--out DIR]
    python benchmarks/contest.py estimators [--number 400]
    python benchmarks/contest.py coverage [--number 5000] [--bootstrap 400]

contests: each (``fedapps.lab.contests``, six methods, eight rounds, no budget) is on
another draw of a case of ``fedapps.testing.truths``. Finished ones are kept in DIR, so
the command can be stopped and repeated. Printed per case:

    right       of the contests whose best family gains at least 3 delta: the verdict is
                to federate with a method of a family within delta of the best one
    false       of the contests in which no family gains delta: a verdict to federate
    hold        all intervals for these sites hold the exact gains of their models
    bias        mean error of the leader's gain in the final, in standard errors
    in race     the same of its gain in the race, which chose it

The exact gain is that of the final's own models: each is scored on points, too, where
the squared error of a linear model is its expectation (``Federation.exact``).

estimators: the statistics alone, in seconds: least squares, their mean, mixtures and
cluster means stand in for the methods. A seed decides which training sample of each
client is left out.

coverage: how often 95 % intervals of a mean gain contain the truth. Differences d[s, k]
of K clients at S seeds are mu + a_s + b_k + e_sk, normal, with the deviations that a
row names. "These sites" must contain the mean over these clients, "sites like these"
mu. Beside them, for mu: a t interval over the seeds' means, and the bootstrap that
redraws seeds and, within them, clients, in the first studies only. Where each seed has
"other clients", b_sk takes the place of b_k; in "missing" ones a tenth of the values is
left out at random.
"""

import json
import logging
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, product
from pathlib import Path
from statistics import fmean
from typing import Any

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import options, show
from fedapps.algorithms.common.seeds import generator
from fedapps.clients.base.data import Split
from fedapps.clients.base.evaluation import Objective
from fedapps.clients.base.scores import Scores
from fedapps.lab.contests.contest import Contest
from fedapps.lab.contests.plan import FINAL_SEEDS
from fedapps.lab.contests.setup import start
from fedapps.lab.contests.trials import LOCAL, Contestant, in_process
from fedapps.lab.contests.verdict import outcome
from fedapps.lab.results.seeds import Interval, crossed_interval, t_interval
from fedapps.lab.results.simultaneous import FEDERATE, at_these_sites, decide
from fedapps.tasks import Regression
from fedapps.tasks.registry import TASKS
from fedapps.testing.truths import PARTS, SIZES, D, Federation, truth

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
    "data.part": "part",
    "num-rounds": 8,
    "clients-per-round": 0,
    "train.local-epochs": 5,
    "train.batch-size": 16,
}
BODY = {"model.name": "fedapps.testing.truths:body_net", "model.start": "random"}
CASES = ["null", "islands", "same", "threshold", "clusters", "body", "shift", "wrong-labels"]
Array = NDArray[np.float64]

# --- contests -------------------------------------------------------------------------


def contest(name: str, seed: int, folder: Path) -> dict[str, Any]:
    """Run a contest and return what is known of it."""
    federation, began = truth(name, seed), (time.monotonic(), time.process_time())
    folder.mkdir(parents=True, exist_ok=True)
    federation.write(folder / "data.csv", seed, exact=True)
    given = {**SETTINGS, "data.source": str(folder / "data.csv"), "seed": 1000 * seed}
    methods = METHODS
    if name == "body":  # a linear net with a body, and a method that shares it
        given, methods = {**given, **BODY}, (*METHODS[:-1], "fedrep")
    found = start(given, folder / "contest", in_process, methods=methods, most_seeds=4)
    found.run()
    result = outcome(found)
    leader, method = found.state.leader, result.verdict.method
    return {
        "verdict": result.verdict.kind,
        "method": method,
        "leader": leader,
        "intervals": {m: [one.low, one.mean, one.high] for m, one in result.here.items()},
        "exact": exact_gains(federation, found),
        "race": found.state.race_gains[str(Contestant(leader, found.state.finalists[leader]))],
        "seconds": time.monotonic() - began[0],
        "cpu-seconds": time.process_time() - began[1],
    }


class WithExact(Regression):
    """Scores the exact points, the last ones of a test set, apart."""

    @property
    def objective(self) -> Objective:
        """The loss and the scores."""
        plain = super().objective
        return replace(plain, score=partial(scored_apart, plain.score))


def scored_apart(score: Any, model: Any, data: Split) -> Scores:
    """Return the scores of a set; of a test set without its exact points, and the root
    mean squared error at these as ``exact``.
    """
    n = SIZES[2]
    if len(data) != n + 2 * D:
        return score(model, data)
    samples, points = Split(data.x[:n], data.y[:n]), Split(data.x[n:], data.y[n:])
    return {**score(model, samples), "exact": score(model, points)["rmse"]}


def exact_gains(federation: Federation, found: Contest) -> dict[str, float]:
    """Return the exact mean gain of the final's models, by method."""
    noise = {f"site-{k + 1:02d}": float(s) for k, s in enumerate(federation.noise)}
    risks: dict[str, list[float]] = {}
    for trial in found.final_trials():
        rows = {row["client"]: row["exact"] for row in found.trials.read(trial).clients}
        own = [float(np.hypot(noise[k], error)) for k, error in rows.items()]
        risks.setdefault(trial.who.method, []).append(fmean(own))
    return {m: fmean(risks[LOCAL]) - fmean(own) for m, own in risks.items() if m != LOCAL}


# --- the statistics alone -------------------------------------------------------------


def estimated(name: str, seed: int) -> dict[str, Any]:
    """Return what :func:`contest` does, of estimators in place of methods."""
    federation = truth(name, seed)
    k, d = federation.weights.shape
    data = {
        part: [federation.samples(seed, j, part, n) for j in range(k)]
        for part, n in zip(PARTS, SIZES, strict=True)
    }
    rng = generator(seed, f"estimated {name}")
    methods = {"local": 1.0, "fedavg": 0.0, "finetune": 0.3, "ditto": 0.6, "ifca": 0.0}
    seeds = 3 + FINAL_SEEDS
    parts = ("V", "T", "half", "exact")
    scores = {part: {m: np.empty((seeds, k)) for m in methods} for part in parts}
    for s in range(seeds):
        own = np.empty((k, d))
        for j, (x, y) in enumerate(data["train"]):
            kept = np.arange(len(y)) != rng.integers(len(y))
            own[j] = np.linalg.lstsq(x[kept], y[kept], rcond=None)[0]
        groups = np.stack([own[federation.groups == g].mean(0) for g in (0, 1)])
        for m, a in methods.items():
            u = groups[federation.groups] if m == "ifca" else own.mean(0) + a * (own - own.mean(0))
            u = u * shrinkage(u, data["validation"]) if m == "local" else u
            for j in range(k):
                for part, place in (("validation", "V"), ("test", "T")):
                    x, y = data[part][j]
                    errors = (x @ u[j] - y) ** 2
                    scores[place][m][s, j] = -np.sqrt(errors.mean())
                scores["half"][m][s, j] = -np.sqrt(errors[1::2].mean())
                off = federation.scale[j] ** 2 * ((u[j] - federation.weights[j]) ** 2).sum()
                scores["exact"][m][s, j] = -np.sqrt(federation.noise[j] ** 2 + off)
    gains = {p: {m: t - own[LOCAL] for m, t in own.items()} for p, own in scores.items()}
    others = [m for m in methods if m != LOCAL]
    leader = max(others, key=lambda m: float(gains["V"][m][:3].mean()))
    finalists = dict.fromkeys((leader, "finetune", "fedavg"))
    final = {m: gains["T"][m][3:] for m in finalists}
    delta = 0.02 * federation.error_of_a_mean
    halves = {m: gains["half"][m][3:] for m in finalists}
    intervals = at_these_sites(final, halves)
    verdict = decide(final, halves, leader, delta, "finetune")
    return {
        "verdict": verdict.kind,
        "method": verdict.method,
        "leader": leader,
        "risks": federation.risks(),
        "delta": delta,
        "intervals": {m: [one.low, one.mean, one.high] for m, one in intervals.items()},
        "exact": {m: float(gains["exact"][m][3:].mean()) for m in finalists},
        "race": float(gains["V"][leader][:3].mean()),
    }


def shrinkage(u: Any, validation: list[Any]) -> float:
    """Return the factor of the estimates that is best on validation samples: training
    alone has its rate chosen, too.
    """
    errors = {
        a: fmean(((a * x @ w - y) ** 2).mean() for w, (x, y) in zip(u, validation, strict=True))
        for a in (0.0, 0.25, 0.5, 0.75, 1.0)
    }
    return min(errors, key=lambda a: errors[a])


# --- what is right --------------------------------------------------------------------


def known(name: str, seed: int) -> dict[str, Any]:
    """Return what is known of a federation before any contest."""
    federation = truth(name, seed)
    delta = 0.02 * federation.error_of_a_mean
    return {"case": name, "risks": federation.risks(), "delta": delta}


def judged(one: dict[str, Any]) -> dict[str, Any]:
    """Return whether a contest was right, and how far its numbers are off."""
    risks, delta = one["risks"], one["delta"]
    best = min(risks.values())
    gain = risks["alone"] - best
    near = {family for family, risk in risks.items() if risk <= best + delta}
    federate = one["verdict"] == FEDERATE
    families = {**FAMILY, **(IN_BODY if one["case"] == "body" else {})}
    inside = [low <= one["exact"][m] <= high for m, (low, _, high) in one["intervals"].items()]
    low, mean, high = one["intervals"][one["leader"]]
    error, truth_ = (high - low) / 4, one["exact"][one["leader"]]
    return {
        "right": federate and families[one["method"]] in near if gain >= 3 * delta else None,
        "false": federate if gain < delta else None,
        "hold": all(inside),
        "bias": (mean - truth_) / error,
        "in race": (one["race"] - truth_) / error,
    }


def contest_rows(given: Any) -> Iterator[list[str]]:
    """Run the missing contests; yield a row per case."""
    TASKS["regression"] = replace(TASKS["regression"], build=WithExact)
    logging.getLogger("fedapps.notes").setLevel(logging.ERROR)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in given.cases}
    for seed, name in product(range(given.number), given.cases):  # stopping is fair
        path = Path(given.out) / f"{name}-{seed}.json"
        if not path.exists():
            folder = path.with_suffix("").absolute()
            path.write_text(json.dumps(contest(name, seed, folder), indent=1), encoding="utf-8")
            shutil.rmtree(folder)
        found[name].append(json.loads(path.read_text(encoding="utf-8")) | known(name, seed))
    yield from judged_rows(found)


def estimator_rows(given: Any) -> Iterator[list[str]]:
    """Yield a row per case. The estimators are linear and have no body."""
    cases, seeds = [name for name in given.cases if name != "body"], range(given.number)
    yield from judged_rows({n: [estimated(n, s) | known(n, s) for s in seeds] for n in cases})


def judged_rows(found: dict[str, list[dict[str, Any]]]) -> Iterator[list[str]]:
    """Yield a row per case, and of all."""
    for name, results in [*found.items(), ("all", list(chain(*found.values())))]:
        yield [name, str(len(results)), *row(results)]


def row(results: list[dict[str, Any]]) -> list[str]:
    """Return the cells of a case."""
    all_judged = [judged(one) for one in results]
    cells = []
    for key in ("right", "false", "hold"):
        known = [bool(j[key]) for j in all_judged if j[key] is not None]
        cells.append(f"{sum(known)} of {len(known)}" if known else "-")
    cells += [f"{fmean(j[key] for j in all_judged):+.2f}" for key in ("bias", "in race")]
    words = [f"{one['verdict']} {one['method']}".strip() for one in results]
    counts = {word: words.count(word) for word in sorted(set(words))}
    return [*cells, ", ".join(f"{word}: {count}" for word, count in counts.items())]


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


def nested_bootstrap(table: Array, rng: np.random.Generator, draws: int = 300) -> Interval:
    """Return the interval of a bootstrap of seeds and, within them, clients (S, K)."""
    s, k = table.shape
    seeds = rng.integers(s, size=(draws, s, 1))
    means = table[seeds, rng.integers(k, size=(draws, s, k))].mean((1, 2))
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(table.mean()), 0.0, float(low), float(high), s)


def covered(
    study: tuple[float, float, float, str], shape: tuple[int, int], repeats: int, bootstrap: int
) -> list[float]:
    """Return the shares in which the four intervals contain the truth, NaN for one that
    does not exist, and the mean width of the last one over that of t over seeds.
    """
    clients, seeds, rest, special = study
    rng = generator(0, f"coverage {study} {shape}")
    inside, widths = np.full((repeats, 4), np.nan), np.zeros((repeats, 2))
    for repeat in range(repeats):
        b = clients * rng.normal(size=shape if special == "other clients" else (1, shape[1]))
        table = b + seeds * rng.normal(size=(shape[0], 1)) + rest * rng.normal(size=shape)
        redrawn = nested_bootstrap(table, rng) if repeat < bootstrap else None
        if special == "missing":
            table[rng.random(shape) < 0.1] = np.nan
        means = np.nanmean(table, 1).tolist()
        these = t_interval(means)
        like = these if special == "other clients" else crossed_interval(table)
        for place, (one, target) in enumerate(
            [
                (redrawn, 0.0),
                (these, 0.0),
                (None if special == "other clients" else these, b.mean()),
                (like, 0.0),
            ]
        ):
            if one is not None:
                inside[repeat, place] = one.low <= target <= one.high
        if like is not None:
            widths[repeat] = like.high - like.low, these.high - these.low
    width, of_t = widths.mean(0)
    # a mean over the repeats that have the interval; of none it is NaN
    known = np.isfinite(inside).sum(0)
    shares = np.where(known > 0, np.nansum(inside, 0) / np.maximum(known, 1), np.nan)
    return [*shares, width / of_t]


def coverage_rows(given: Any) -> Iterator[list[str]]:
    """Yield a row per study, and number of seeds and clients."""
    for study, s, k in product(STUDIES, SEEDS, CLIENTS):
        *shares, width = covered(study, (s, k), given.number, given.bootstrap)
        texts = ["-" if share != share else f"{100 * share:.1f}" for share in shares]
        yield [*map(str, (*study, s, k)), *texts, f"{width:.2f}"]


def main() -> None:
    """Print a table."""
    given = options(
        __doc__,
        {
            "study": ("contests", "estimators", "coverage"),
            "--cases": CASES,
            "--number": 20,  # of contests or studies, each
            "--bootstrap": 400,
            "--out": "results/contest-truths",
        },
    )
    if given.study == "coverage":
        columns = ("clients", "seeds", "rest", "", "S", "K", "bootstrap", "t over seeds")
        columns += ("these sites", "sites like these", "its width / that of t")
        show("Coverage of 95 % intervals, %", columns, coverage_rows(given))
        return
    columns = ("case", "contests", "right", "false", "hold", "bias", "in race", "verdicts")
    rows = contest_rows if given.study == "contests" else estimator_rows
    show("Contests with a known answer", columns, rows(given))


if __name__ == "__main__":
    main()

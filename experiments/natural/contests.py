"""Contests on natural federations: which method suits the tables of real schools,
people and stations, and do the verdicts hold at clients that they have not seen?

    python experiments/natural/contests.py --data DIR [--scale full] [NAME ...]

``--scale small``: one contest for each federation whose data are in DIR; ``full``:
three, with other seeds and other test samples. NAME: these federations only. Repeated,
the command goes on where it stopped. Results are in ``--out``: NAME-0.json, NAME-0.html
(the verdict), ...; the table is printed at the end, alone with ``--only-print``.

How a table is read (target, columns, task) is what ``experiments/natural-tables.toml``
says, for the roles of Shakespeare ``experiments/superfed/wins-shakespeare.toml``.

A third of the clients is held out of each contest. They train like all others, as sites
that joined, but rates, choices, delta and intervals are those of the other two thirds.
The third of contest 1 is not that of contest 0 or 2, so in three contests every client
is held out once. Afterwards the same tests are read at them: a gain whose interval for
sites like these excludes 0 should have the same sign there.
"""

import argparse
import json
import logging
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from fedapps.algorithms.common.seeds import generator
from fedapps.engines.processes import cores
from fedapps.errors import RunFailed, UserError
from fedapps.formats import counts_in_points
from fedapps.lab.client_samples import names_of, samples_of
from fedapps.lab.contests.contest import CHOICE, REFERENCE, Contest
from fedapps.lab.contests.page import write_verdict
from fedapps.lab.contests.rows import in_all, score_of
from fedapps.lab.contests.setup import start
from fedapps.lab.contests.trials import LOCAL
from fedapps.lab.contests.verdict import ALONE, EITHER, USE, Outcome
from fedapps.lab.sweeps.execution import Way, only_one, uses_gpu
from fedapps.lab.sweeps.grid import read_grid
from fedapps.lab.sweeps.pool import Pool
from fedapps.lab.sweeps.tables import markdown_table
from fedapps.notes import each_once
from fedapps.runs.prepare import Parts, assemble, with_defaults

EXPERIMENTS = Path(__file__).resolve().parents[1]
SCALES = {"small": 1, "full": 3}
#: The largest number of clients of a federation (the first ones), and in a round.
CLIENTS, PER_ROUND = 45, 20
#: Beside training alone, FedAvg and fine-tuning. Not trees, which need more rounds, nor
#: a shared body, which the tables' linear models do not have.
METHODS = ("scaffold", "ditto", "superfed-mm", "ifca")
ROUNDS = 8
#: A text takes a hundred times as long as a row.
OF_TEXTS = {"num-clients": 24, "clients-per-round": 8, "train.local-epochs": 1}


def federations() -> dict[str, dict[str, Any]]:
    """Return the settings that read each federation's data."""
    found: dict[str, dict[str, Any]] = {}
    for scale in ("", "choose-classes", "survival"):
        grid = read_grid(EXPERIMENTS / "natural-tables.toml", scale=scale)
        (cases,) = (axis.values for axis in grid.axes if axis.name == "data")
        common = {key: grid.fixed[key] for key in ("task", "data.label") if key in grid.fixed}
        found |= {name: {**common, **case} for name, case in cases.items()}
    del found["Generated"], found["BRCA, a split per seed"]
    roles = read_grid(EXPERIMENTS / "superfed" / "wins-shakespeare.toml").fixed
    kinds = ("data.", "model.", "train.", "text.min-characters")
    found["Shakespeare"] = {k: v for k, v in roles.items() if k == "task" or k.startswith(kinds)}
    del found["Shakespeare"]["train.learning-rate"]
    found["Shakespeare"] |= OF_TEXTS
    return found


def parts(given: Mapping[str, Any]) -> Parts:
    """Return the parts of a run outside of a contest, which has all samples."""
    return assemble(with_defaults({**given, "method": LOCAL}))


def with_sizes(given: Mapping[str, Any], data: Path, number: int) -> dict[str, Any]:
    """Return the settings of a federation's contest of that number."""
    source = data.expanduser().absolute() / given["data.source"]
    if not source.exists():
        raise UserError(f"{source} is not there")
    one = {"num-rounds": ROUNDS, **given, "data.source": str(source)}
    if one["task"] != "text":
        there = parts({**one, "num-clients": 0}).settings.num_clients
        one |= {"num-clients": min(CLIENTS, there), "clients-per-round": min(PER_ROUND, there)}
    return one | {"seed": 1000 * number, "data.split-seed": str(number)}


def third(names: Sequence[str], number: int) -> list[str]:
    """Return the clients that are held out of the contest of that number."""
    order = generator(0, "natural contests: held out").permutation(len(names))
    n = len(names) // 3
    return sorted(names[k] for k in order[number % 3 * n :][:n])


def contest(given: Mapping[str, Any], number: int, folder: Path, jobs: int) -> dict[str, Any]:
    """Run or continue a contest; return what is known of it."""
    settings, task, _ = parts(given)
    total = settings.num_clients
    held_out = third(names_of(task, total), number)
    folder.mkdir(parents=True, exist_ok=True)
    jobs, gpus = Way(jobs=jobs).processes(uses_gpu(settings))
    with only_one(folder), each_once(), Pool(jobs, gpus) as execute:
        found = start(given, folder, execute, methods=METHODS, jobs=jobs)
        found.trials.held_out = frozenset(held_out)
        found.run()
        result, _ = write_verdict(found)
    return known_of(found, result, held_out) | dict(
        zip(("sizes", "between"), described(task, total), strict=True)
    )


def known_of(found: Contest, result: Outcome, held_out: Sequence[str]) -> dict[str, Any]:
    """Return what is kept of a contest: its verdict, each candidate's gain with its
    intervals, and its mean gain at the clients held out, in points of a percentage or
    in per cent of the error that predicting each client's mean has.
    """
    state = found.state
    unit = 100.0 if counts_in_points(state.measure) else 2.0 / state.delta
    found.trials.held_out, found.trials.kept = (), {}
    tested = found.tested()
    unseen = {}
    for method in result.gains:
        own = [
            score_of(k, tested[method], state.measure)
            - score_of(k, tested[REFERENCE], state.measure)
            for k in held_out
            if in_all(k, tested[method], tested[REFERENCE])
        ]
        unseen[method] = unit * float(np.nanmean(own)) if np.isfinite(own).any() else None
    return {
        "held-out": list(held_out),
        "kind": result.kind,
        "method": result.method,
        "leader": result.leader,
        "delta": unit * state.delta,
        "minutes": found.elapsed() / 60,
        "choices": [one["choice"] for one in state.ended],
        "gains": {
            m: [unit * v for v in (g.mean, g.here.low, g.here.high, g.like.low, g.like.high)]
            for m, g in result.gains.items()
        },
        "unseen": unseen,
    }


def described(task: Any, total: int) -> tuple[list[int], float | None]:
    """Return the clients' numbers of samples, and the share of the target's variance
    between clients (of the quarter that it is in, of the class; ``None`` for texts):
    the intraclass correlation of a one-way analysis of variance.
    """
    try:
        deal = samples_of(task, total)
    except UserError:  # sequences have no class
        data = [task.client_data(k, total) for k in range(total)]
        own = [{id(p): len(p) for p in (d.train, d.validation, d.test)} for d in data]
        return [sum(lengths.values()) for lengths in own], None
    counts = deal.trained
    n, y = counts.sum(1), np.arange(counts.shape[1])
    means = counts @ y / n
    grand = n @ means / n.sum()
    inside = (counts * (y - means[:, None]) ** 2).sum() / (n.sum() - total)
    outside = n @ (means - grand) ** 2 / (total - 1)
    usual = (n.sum() - (n**2).sum() / n.sum()) / (total - 1)
    share = (outside - inside) / (outside + (usual - 1) * inside)
    return deal.sizes.sum(1).tolist(), max(float(share), 0.0)


# --- what is printed ------------------------------------------------------------------


def signs(one: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many of the signs that the intervals for sites like these decide hold
    at the clients held out, and how many there are.
    """
    decided = {m: g[0] for m, g in one["gains"].items() if g[3] > 0 or g[4] < 0}
    known = [mean * one["unseen"][m] > 0 for m, mean in decided.items() if one["unseen"][m]]
    return sum(known), len(known)


def with_bounds(gain: Sequence[float]) -> str:
    """Return a gain, its interval for these sites, and that for sites like these."""
    mean, *bounds = gain
    return "{:+.1f} [{:.1f}, {:.1f}]; [{:.1f}, {:.1f}]".format(mean, *bounds)


def row(name: str, one: Mapping[str, Any]) -> list[str]:
    """Return the cells of a contest."""
    sizes, chosen = one["sizes"], one["choices"]
    counts = ", ".join(f"{m} {chosen.count(m)}" for m in dict.fromkeys(chosen))
    return [
        name,
        f"{len(sizes)} ({len(one['held-out'])})",
        f"{np.median(sizes):.0f}",
        "-" if one["between"] is None else f"{100 * one['between']:.0f} %",
        f"**{one['kind']}**" + f", {one['method']}" * (one["kind"] != "alone"),
        counts,
        with_bounds(one["gains"][CHOICE]),
        *(with_bounds(g) if (g := one["gains"].get(m)) else "-" for m in ("finetune", "fedavg")),
        "{} of {}".format(*signs(one)),
        f"{one['minutes']:.1f}",
    ]


HEADER = (
    "federation",
    "clients (held out)",
    "rows of a client",
    "between",
    "verdict",
    "chosen in folds",
    "the choice over training alone",
    "fine-tuning",
    "FedAvg",
    "signs that hold",
    "minutes",
)


def printed(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the table of all contests, by federation, and the counts."""
    results = [one for contests in found.values() for one in contests]
    hold, decided = map(sum, zip(*map(signs, results), strict=True))
    kinds = [one["kind"] for one in results]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in (USE, ALONE, EITHER))
    return (
        markdown_table(HEADER, [row(name, one) for name, own in found.items() for one in own])
        + f"\n\n{len(results)} contests on {len(found)} federations: {counts}. "
        f"Signs that hold at the clients held out: {hold} of {decided}."
    )


def main() -> None:
    """Run the missing contests and print the tables."""
    parser = argparse.ArgumentParser(description=" ".join((__doc__ or "").split("\n")[:2]))
    parser.add_argument("names", nargs="*", metavar="NAME", help="federations (default: all)")
    parser.add_argument("--data", type=Path, default=Path(), metavar="DIR")
    parser.add_argument("--scale", choices=SCALES, default="small")
    parser.add_argument("--out", type=Path, default=Path("results/natural-contests"))
    parser.add_argument("--jobs", type=int, default=cores(), help="runs at a time")
    parser.add_argument("--only-print", action="store_true")
    arguments = parser.parse_args()
    known = federations()
    if unknown := set(arguments.names) - set(known):
        parser.error(f"{', '.join(sorted(unknown))}: choose from {', '.join(known)}")
    names = arguments.names or list(known)
    found: dict[str, list[dict[str, Any]]] = {}
    for number in range(SCALES[arguments.scale]):  # all first contests first
        for name in names:
            path = arguments.out / f"{name}-{number}.json"
            folder = path.with_suffix("").absolute()
            if not path.exists() and not arguments.only_print:
                try:
                    given = with_sizes(known[name], arguments.data, number)
                    result = contest(given, number, folder, arguments.jobs)
                except (UserError, RunFailed) as error:
                    print(f"{name} is left out: {error}", file=sys.stderr)
                    continue
                (folder / "verdict.html").replace(path.with_suffix(".html"))
                path.write_text(json.dumps(result) + "\n", encoding="utf-8")
                shutil.rmtree(folder)
                said = f"{result['kind']}, {result['minutes']:.1f} minutes"
                print(f"{path.stem}: {said}", file=sys.stderr, flush=True)
            if path.exists():
                found.setdefault(name, []).append(json.loads(path.read_text(encoding="utf-8")))
    if not found:
        sys.exit("no contest to print")
    print(printed({name: found[name] for name in names if name in found}))


if __name__ == "__main__":
    logging.getLogger("fedapps.notes").setLevel(logging.ERROR)
    main()

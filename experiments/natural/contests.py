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
that joined, but rates, race, leader, delta and intervals are those of the other two
thirds. The third of contest 1 is not that of contest 0 or 2, so in three contests every
client is held out once. Afterwards the same runs of the final are read at them: a gain
whose simultaneous interval excludes 0 should have the same sign there.
"""

import argparse
import json
import logging
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from fedapps.algorithms.common.seeds import generator
from fedapps.clients.base.scores import HALF
from fedapps.engines.processes import cores
from fedapps.errors import RunFailed, UserError
from fedapps.formats import counts_in_points
from fedapps.lab.client_samples import names_of, samples_of
from fedapps.lab.contests.page import write_verdict
from fedapps.lab.contests.plan import FIRST_SEEDS
from fedapps.lab.contests.setup import start
from fedapps.lab.contests.trials import FINETUNE, LOCAL, as_table, scores_of
from fedapps.lab.results.seeds import Interval, crossed_interval, same_sites_interval
from fedapps.lab.results.simultaneous import (
    FEDERATE,
    UNKNOWN,
    Decision,
    Table,
    decide,
    simultaneous,
)
from fedapps.lab.sweeps.execution import Way, only_one, uses_gpu
from fedapps.lab.sweeps.grid import read_grid
from fedapps.lab.sweeps.pool import Pool
from fedapps.lab.sweeps.texts import markdown_table
from fedapps.notes import each_once
from fedapps.records.reader import read_run
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
        found = start(given, folder, execute, methods=METHODS, jobs=jobs, most_seeds=FIRST_SEEDS)
        found.trials.held_out = frozenset(held_out)
        found.run()
        write_verdict(found)
    state, scores, halves = found.state, {}, {}
    for trial in found.final_trials():
        run = read_run(found.trials.out / "cells" / trial.folder)
        for measured, prefix in ((scores, ""), (halves, HALF)):
            own = measured.setdefault(trial.who.method, {})
            own[trial.seed] = scores_of(run, prefix + state.measure)
    sizes, between = described(task, total)
    return {
        "sizes": sizes,
        "between": between,
        "held-out": held_out,
        "leader": state.leader,
        "measure": state.measure,
        "delta": state.delta,
        "minutes": found.elapsed() / 60,
        "rates": state.finalists,
        "race": state.race_gains,
        "dropped": state.dropped,
        "left-out": state.left_out,
        "scores": scores,
        "halves": halves,
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


def tables(one: Mapping[str, Any], held_out: bool = False, key: str = "scores") -> dict[str, Table]:
    """Return the finalists' scores (S, K) in the final, at clients that have them all:
    those of the contest, or those held out of it. In points of a percentage, or in per
    cent of the error that predicting each client's mean has. ``key``: "halves" for
    those of half of the test samples, NaN where there are none.
    """
    unit = 100.0 if counts_in_points(one["measure"]) else 2.0 / one["delta"]
    runs = [own for by_seed in one["scores"].values() for own in by_seed.values()]
    clients = [k for k in sorted(runs[0]) if all(k in own for own in runs)]
    clients = [k for k in clients if (k in one["held-out"]) == held_out]
    return {m: unit * as_table(by_seed, clients) for m, by_seed in one[key].items()}


def gains(one: Mapping[str, Any], held_out: bool = False, key: str = "scores") -> dict[str, Table]:
    """Return the finalists' gains over training alone."""
    scores = tables(one, held_out, key)
    return {m: table - scores[LOCAL] for m, table in scores.items() if m != LOCAL}


def signs(one: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many decided signs hold at the clients held out, and how many there
    are.
    """
    unseen = gains(one, held_out=True)
    decided = {m: i for m, i in simultaneous(gains(one)).items() if i.excludes_zero}
    hold = [np.mean(unseen[m]) * i.mean > 0 for m, i in decided.items()]
    return sum(hold), len(hold)


def with_bounds(table: Table, half: Table, like: Interval | None) -> str:
    """Return a mean gain, its interval for these sites, and that for sites like
    these.
    """
    these = same_sites_interval(table, half)
    both = [f"[{i.low:.1f}, {i.high:.1f}]" for i in (these, like) if i]
    return f"{table.mean():+.1f} {'; '.join(both)}"


def delta_of(one: Mapping[str, Any]) -> int:
    """Return what counts as a difference, in the unit of :func:`tables`."""
    return 1 if counts_in_points(one["measure"]) else 2


def verdict_of(one: Mapping[str, Any]) -> Decision:
    """Return the verdict, for the sites of a contest."""
    halves = gains(one, key="halves")
    return decide(gains(one), halves, one["leader"], delta_of(one), FINETUNE)


def beyond(one: Mapping[str, Any]) -> int:
    """Return 1 if the leader is shown to gain more than delta at sites like these, -1
    if less, 0 if neither.
    """
    like, delta = simultaneous(gains(one))[one["leader"]], delta_of(one)
    return int(like.low > delta) - int(like.high < delta)


def row(name: str, one: Mapping[str, Any]) -> list[str]:
    """Return the cells of a contest."""
    scores, over = tables(one), gains(one)
    half, over_half = tables(one, key="halves"), gains(one, key="halves")
    leader, sizes, delta = one["leader"], one["sizes"], delta_of(one)
    counts = []
    for method, table in over.items():
        mean = table.mean(0)
        wins, losses = int((mean > delta).sum()), int((mean < -delta).sum())
        counts.append(f"{method} {wins} / {len(mean) - wins - losses} / {losses}")
    beside = "-"
    if FINETUNE in scores and leader != FINETUNE:
        ahead = scores[leader] - scores[FINETUNE]
        beside = with_bounds(ahead, half[leader] - half[FINETUNE], crossed_interval(ahead))
    verdict = verdict_of(one)
    return [
        name,
        f"{len(sizes)} ({len(one['held-out'])})",
        f"{sum(sizes):,}",
        f"{np.median(sizes):.0f}",
        "-" if one["between"] is None else f"{100 * one['between']:.0f} %",
        f"**{verdict.kind}**" + (f", {verdict.method}" if verdict.kind == FEDERATE else ""),
        leader,
        with_bounds(over[leader], over_half[leader], simultaneous(over)[leader]),
        beside,
        ", ".join(counts),
        "{} of {}".format(*signs(one)),
        f"{one['minutes']:.1f}",
    ]


HEADER = (
    "federation",
    "clients (held out)",
    "samples",
    "of a client",
    "between",
    "verdict",
    "leader",
    "leader over training alone",
    "leader over fine-tuning",
    "wins / ties / losses over clients",
    "signs that hold",
    "minutes",
)
#: So many columns describe the federation.
FACTS = HEADER.index("verdict")


def by_method(results: Sequence[Mapping[str, Any]]) -> Iterable[list[str]]:
    """Yield the cells of each method: over all contests."""
    for method in ("fedavg", FINETUNE, *METHODS):
        led = [one["leader"] == method for one in results]
        final = [simultaneous(gains(one))[method] for one in results if method in one["scores"]]
        wins, losses = sum(i.low > 0 for i in final), sum(i.high < 0 for i in final)
        # a contestant is `method at rate`
        left = [{who.split(" at ")[0] for who in one["race"]} for one in results]
        out = [method in one["left-out"] for one in results]
        dropped = [not o and method not in there for o, there in zip(out, left, strict=True)]
        final_cell = f"{wins} / {len(final) - wins - losses} / {losses}" if final else "-"
        yield [method, str(sum(led)), final_cell, str(sum(dropped)), str(sum(out))]


def rows_of(name: str, contests: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the rows of a federation; what describes it is in the first one only."""
    rows = [row(name, one) for one in contests]
    return rows[:1] + [[""] * FACTS + cells[FACTS:] for cells in rows[1:]]


def printed(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the tables of all contests, by federation."""
    results = [one for contests in found.values() for one in contests]
    hold, decided = map(sum, zip(*map(signs, results), strict=True))
    kinds = [verdict_of(one).kind for one in results]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in (FEDERATE, "alone", UNKNOWN))
    like = [beyond(one) for one in results]
    columns = ("method", "leads", "final: wins / ties / losses", "dropped", "cannot run")
    return "\n\n".join(
        [
            markdown_table(HEADER, [r for name, own in found.items() for r in rows_of(name, own)]),
            markdown_table(columns, list(by_method(results))),
            f"{len(results)} contests on {len(found)} federations: {counts}. For sites like "
            f"these the leader gains more than delta in {like.count(1)}, less in "
            f"{like.count(-1)}. Signs that hold at the clients held out: {hold} of {decided}.",
        ]
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
                said = f"{verdict_of(result).kind}, {result['minutes']:.1f} minutes"
                print(f"{path.stem}: {said}", file=sys.stderr, flush=True)
            if path.exists():
                found.setdefault(name, []).append(json.loads(path.read_text(encoding="utf-8")))
    if not found:
        sys.exit("no contest to print")
    print(printed({name: found[name] for name in names if name in found}))


if __name__ == "__main__":
    logging.getLogger("fedapps.notes").setLevel(logging.ERROR)
    main()

"""What each client gains over a reference run, usually training alone: whether to take
part at all.

A client is paired with itself by its id, a run with the reference of the same seed,
since another seed deals other samples. With a_k the accuracy (AUROC where all runs have
it) of client k and b_k that in the reference run: the mean of a_k - b_k, the share of
clients with a_k > b_k and with a_k < b_k, and the least a_k - b_k, that of the client
that loses most. Of an RMSE, of which less is better, the gain is b_k - a_k. From three
seeds on the mean has bounds, which know of other seeds and of other clients.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import stdev
from typing import Any, NamedTuple

import numpy as np

from algorithms.common.measures import lower_is_better
from algorithms.common.seeds import generator
from fedapps.errors import UserError
from fedapps.formats import is_percent, metric_name, metric_text, one_line
from fedapps.records.reader import RunFolder, is_number, read_run
from fedapps.results.comparison_table import Row
from fedapps.results.fair_plots import fair_measure
from fedapps.results.sections import Section
from fedapps.results.seeds import ENOUGH, Interval, nested_bootstrap

#: Settings of the data that change neither which samples a client tests on nor how they
#: are scored.
_FREE = {
    "data.group",
    "data.group-edges",
    "data.synthetic",
    "data.synthetic-use",
    "data.noise",
    "data.noise-ratio",
    "data.noise-validation",
    "data.class-weights",
}


class Pair(NamedTuple):
    """One client's value in a run and in the reference run of the same seed, and
    whether less is better of it.
    """

    seed: object
    client: str
    value: float
    reference: float
    lower: bool = False

    @property
    def gain(self) -> float:
        """What the client gains."""
        return self.reference - self.value if self.lower else self.value - self.reference


@dataclass(frozen=True)
class Gains:
    """The clients of one row, paired run by run, and how many of the reference's
    clients have no partner.
    """

    row: Row
    runs: tuple[tuple[Pair, ...], ...]
    alone: int

    def numbers(self) -> dict[str, tuple[float, float | None]]:
        """Return the mean over the runs of each measure and, of several, the deviation;
        of ``gain-worst`` the least.
        """
        means = [[pair.gain for pair in run] for run in self.runs]
        table = {
            "gain-mean": [sum(gains) / len(gains) for gains in means],
            "gain-share": [sum(gain > 0 for gain in gains) / len(gains) for gains in means],
            "gain-share-lost": [sum(gain < 0 for gain in gains) / len(gains) for gains in means],
        }
        out = {key: (sum(v) / len(v), stdev(v) if len(v) > 1 else None) for key, v in table.items()}
        out |= {"gain-worst": (min(min(gains) for gains in means), None)}
        bounds = self.bounds
        return (
            out
            if bounds is None
            else out | {"gain-mean-low": (bounds.low, None), "gain-mean-high": (bounds.high, None)}
        )

    @cached_property
    def bounds(self) -> Interval | None:
        """The mean with its 95 % bounds over seeds and, within them, clients; none of
        fewer than three seeds.
        """
        if len(self.runs) < ENOUGH:
            return None
        draws = max(100, min(2000, 4_000_000 // max(map(len, self.runs))))
        return nested_bootstrap(
            [np.array([pair.gain for pair in run]) for run in self.runs],
            generator(0, "gains"),
            draws,
        )


def reference_of(rows: Sequence[Row], reference: Path | None) -> Row | None:
    """Return the row that holds the run in the folder ``reference``; without one the
    first row of method local, if there is one.
    """
    if reference is None:
        return next((row for row in rows if row.runs[0].method == "local"), None)
    return next(
        row for row in rows if any(run.path.resolve() == reference.resolve() for run in row.runs)
    )


def gains_over(rows: Sequence[Row], reference: Row, named: bool) -> tuple[str, list[Gains]]:
    """Return the measure, and what the clients of every other row gain over
    ``reference``.

    Rows without a run of the same seed and the same data are left out; if that leaves
    none, an error if the reference was ``named``.
    """
    measure = fair_measure([run for row in rows for run in row.runs])
    found = []
    for row in rows:
        if row is reference:
            continue
        pairs, alone = [], 0
        for run in row.runs:
            partner = next(
                (
                    other
                    for other in reference.runs
                    if other.seed == run.seed and _same_data(run, other)
                ),
                None,
            )
            if partner is not None and (paired := _pairs(run, partner, measure)):
                pairs.append(paired)
                alone += len(partner.column(measure)) - len(paired)
        if pairs:
            found.append(Gains(row, tuple(pairs), alone))
    if named and not found:
        raise UserError(
            f"compare: no run has the seed, the data and the clients of {reference.runs[0].path}, "
            "the reference: nothing can be paired"
        )
    return measure, found


def gain_over_local(run: RunFolder) -> tuple[str, str]:
    """Return the mean gain of a run's clients over training alone, and a note on it;
    "?" and how to get it if no folder beside the run holds a completed run of method
    local with the same seed, data and number of rounds.
    """
    measure = fair_measure([run])
    for other in _local_runs_beside(run):
        if pairs := _pairs(run, other, measure):
            gains = [pair.gain for pair in pairs]
            mean = _signed(measure, sum(gains) / len(gains))
            better = sum(gain > 0 for gain in gains)
            unit = "in points; " if is_percent(measure) else ""
            note = f"{unit}{better} of {len(gains)} clients gain ({one_line(other.path.name)})"
            return mean, note
    return "?", (
        "Not known yet. Run method=local with the same settings, then compare both: fedapps compare"
    )


def _local_runs_beside(run: RunFolder) -> Iterator[RunFolder]:
    for folder in sorted(run.path.resolve().parent.iterdir()):
        settings = folder / "settings.toml"
        # Looked for in the text first: a sweep has many folders beside each other.
        if settings.is_file() and 'method = "local"' in settings.read_text(errors="replace"):
            other = read_run(folder)
            same = (other.method, other.seed, other.num_rounds, other.state) == (
                "local",
                run.seed,
                run.num_rounds,
                "completed",
            )
            if same and _same_data(run, other):
                yield other


def _same_data(run: RunFolder, other: RunFolder) -> bool:
    keys = {
        key
        for key in run.settings | other.settings
        if key.split(".")[0] in ("data", run.task) and key not in _FREE
    }
    return all(
        run.settings.get(key) == other.settings.get(key) for key in keys | {"task", "num-clients"}
    )


def _pairs(run: RunFolder, reference: RunFolder, measure: str) -> tuple[Pair, ...]:
    known = {
        row["client"]: row[measure] for row in reference.clients if is_number(row.get(measure))
    }
    scored = [row for row in run.clients if is_number(row.get(measure)) and row["client"] in known]
    return tuple(
        Pair(run.seed, row["client"], row[measure], known[row["client"]], lower_is_better(measure))
        for row in scored
    )


def gains_section(measure: str, reference: Row, found: Sequence[Gains]) -> Section | None:
    """Return the gains as a table, one setting a row."""
    rows = []
    for gains in found:
        numbers = gains.numbers()
        (mean, std), (up, _), (down, _), (worst, _) = list(numbers.values())[:4]
        bounds = gains.bounds
        spread = "" if std is None else f"\n±{_size(measure, std)}"
        spread += (
            ""
            if bounds is None
            else f"\n{_signed(measure, bounds.low)} to {_signed(measure, bounds.high)}"
        )
        clients = len({pair.client for run in gains.runs for pair in run})
        rows.append(
            (
                gains.row.label,
                f"{_signed(measure, mean)}{spread}",
                f"{100 * up:.0f}",
                f"{100 * down:.0f}",
                _signed(measure, worst),
                str(clients),
            )
        )
    if not rows:
        return None
    header = (
        "method",
        "gain, mean",
        "clients that gain %",
        "that lose %",
        "gain, least",
        "clients",
    )
    name = metric_name(measure)
    difference = (
        f"{name[:1].upper() + name[1:]} of each client minus its own under {reference.label} "
        "with the same seed, in points"
    )
    if lower_is_better(measure):
        difference = (
            f"How much less the {name} of each client is than its own under {reference.label} "
            "with the same seed"
        )
    note = (
        f"{difference}; the least gain is that of the client that loses most. Each client is "
        "in gains.csv."
    )
    if any(len(gains.runs) > 1 for gains in found):
        note += " Of several seeds: means, and the least of all."
    if any(gains.bounds for gains in found):
        note += (
            " From three seeds on with the central 95 % of what other seeds, and other clients "
            "in them, would show (bootstrap)."
        )
    if alone := sum(gains.alone for gains in found):
        note += f" {alone} clients of the reference have no partner and are left out."
    return Section(f"Gain over {one_line(reference.label, 60)}", note, header, tuple(rows))


def _signed(measure: str, gain: float) -> str:
    return f"{'-' if gain < 0 else '+'}{_size(measure, abs(gain))}"


def _size(measure: str, value: float) -> str:
    return f"{100 * value:.1f}" if is_percent(measure) else metric_text(measure, value)


def records(found: Sequence[Gains]) -> list[dict[str, Any]]:
    """Return one row per client and run: its value, that in the reference run, its
    gain.
    """
    return [
        {"label": one.row.label, **_told(pair)} for one in found for run in one.runs for pair in run
    ]


def _told(pair: Pair) -> dict[str, Any]:
    return {name: value for name, value in pair._asdict().items() if name != "lower"} | {
        "gain": pair.gain
    }


def write_gains(path: Path, found: Sequence[Gains]) -> None:
    """Write every pair to a CSV file."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["label", "seed", "client", "value", "reference", "gain"])
        writer.writeheader()
        writer.writerows(records(found))

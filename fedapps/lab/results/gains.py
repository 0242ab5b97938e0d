"""The gain of each client over a reference run, usually training alone: does it pay to
take part?

Clients are paired by id, and runs with the reference run of the same seed, since
another seed deals other samples. Let a_k be the accuracy of client k (AUROC if all runs
have it) and b_k its accuracy in the reference run. Reported are the mean of a_k - b_k,
the shares of clients with a_k > b_k and with a_k < b_k, and the least a_k - b_k, the
gain of the client that loses most. For an RMSE, where lower is better, the gain is
b_k - a_k. With three or more seeds the mean has intervals for these sites and for sites
like these (``fedapps.lab.results.run_measures``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import stdev
from typing import Any, NamedTuple

from fedapps.algorithms.common.measures import lower_is_better
from fedapps.errors import UserError
from fedapps.formats import is_percent, metric_name, metric_text, one_line
from fedapps.lab.results.comparison_table import Row
from fedapps.lab.results.fair_plots import fair_measure
from fedapps.lab.results.run_measures import same_clients
from fedapps.lab.results.sections import Section
from fedapps.lab.results.seeds import WHO, Difference, Measured, paired, with_intervals
from fedapps.records.reader import RunFolder, is_number

#: Data settings that change neither the test samples of a client nor their scoring.
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
    """One client's value in a run, that in the reference run of the same seed, and the
    client's gain.
    """

    seed: object
    client: str
    value: float
    reference: float
    gain: float


@dataclass(frozen=True)
class Gains:
    """The clients of one row, paired run by run. ``unpaired``: how many clients of the
    reference have no partner.
    """

    row: Row
    runs: tuple[tuple[Pair, ...], ...]
    unpaired: int

    def numbers(self) -> dict[str, tuple[float, float | None]]:
        """Return the mean of each measure over the runs and, for several runs, the
        deviation; for ``gain-worst`` the minimum.
        """
        by_run = [[pair.gain for pair in run] for run in self.runs]
        table = {
            "gain-mean": [sum(gains) / len(gains) for gains in by_run],
            "gain-share": [sum(gain > 0 for gain in gains) / len(gains) for gains in by_run],
            "gain-share-lost": [sum(gain < 0 for gain in gains) / len(gains) for gains in by_run],
        }
        out = {key: (sum(v) / len(v), stdev(v) if len(v) > 1 else None) for key, v in table.items()}
        out |= {"gain-worst": (min(min(gains) for gains in by_run), None)}
        ends = {
            f"gain-mean-{name.replace(' ', '-')}-{end}": (value, None)
            for name, one in self.difference.intervals.items()
            for end, value in (("low", one.low), ("high", one.high))
        }
        return out | ends

    @cached_property
    def difference(self) -> Difference:
        """The mean gain of each seed, with its intervals."""
        gains = {run[0].seed: {pair.client: pair.gain for pair in run} for run in self.runs}
        means = {seed: sum(own.values()) / len(own) for seed, own in gains.items()}
        return with_intervals(Measured(means, gains, all(map(same_clients, self.row.runs))))


def reference_of(rows: Sequence[Row], reference: Path | None) -> Row | None:
    """Return the row with the run in the folder ``reference``. If that is ``None``,
    return the first row of method local, or ``None``.
    """
    if reference is None:
        return next((row for row in rows if row.runs and row.runs[0].method == "local"), None)
    return next(
        row for row in rows if any(run.path.resolve() == reference.resolve() for run in row.runs)
    )


def gains_over(rows: Sequence[Row], reference: Row, named: bool) -> tuple[str, list[Gains]]:
    """Return the measure, and the clients' gains over ``reference`` for every other
    row.

    Rows without a run that has the seed and the data of a reference run are skipped. If
    no row is left and the reference was ``named``, raise ``UserError``.
    """
    measure = fair_measure([run for row in rows for run in row.runs])
    rows_with_gains = []
    for row in rows:
        if row is reference:
            continue
        pairs, unpaired = [], 0
        for run in row.runs:
            partner = next(
                (
                    other
                    for other in reference.runs
                    if other.seed == run.seed and _same_data(run, other)
                ),
                None,
            )
            if partner is not None and (own := _pairs(run, partner, measure)):
                pairs.append(own)
                unpaired += len(partner.column(measure)) - len(own)
        if pairs:
            rows_with_gains.append(Gains(row, tuple(pairs), unpaired))
    if named and not rows_with_gains:
        raise UserError(
            f"compare: no run has the same seed, data and clients as {reference.runs[0].path}, so "
            "gains cannot be computed. Choose another --reference."
        )
    return measure, rows_with_gains


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
    ours, theirs = (
        {row["client"]: row[measure] for row in one.clients if is_number(row.get(measure))}
        for one in (run, reference)
    )
    gains = paired(theirs, ours) if lower_is_better(measure) else paired(ours, theirs)
    return tuple(
        Pair(run.seed, client, ours[client], theirs[client], gains[client])
        for client in ours
        if client in gains
    )


def gains_section(measure: str, reference: Row, all_gains: Sequence[Gains]) -> Section | None:
    """Return the gains as a table, one row per setting."""
    rows = []
    for gains in all_gains:
        numbers = gains.numbers()
        (mean, std), (up, _), (down, _), (worst, _) = list(numbers.values())[:4]
        spread = "" if std is None else f"\n±{_size(measure, std)}"
        for name, one in gains.difference.intervals.items():
            low, high = _signed(measure, one.low), _signed(measure, one.high)
            spread += f"\n{name}\n{low} to {high}"
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
        f"Gain: {name} of each client minus its {name} under {reference.label} with the same "
        "seed, in points"
    )
    if lower_is_better(measure):
        difference = (
            f"Gain: how much lower the {name} of each client is than under {reference.label} with "
            "the same seed"
        )
    note = (
        f"{difference}. The least gain is that of the client that loses most. gains.csv lists "
        "every client."
    )
    if any(len(gains.runs) > 1 for gains in all_gains):
        note += " With several seeds: means over the seeds, and the least gain of all."
    if found := [gains for gains in all_gains if gains.difference.intervals]:
        same = all(gains.difference.these for gains in found)
        note += f" With three or more seeds: 95 % intervals. {WHO[same]}"
    if unpaired := sum(gains.unpaired for gains in all_gains):
        note += f" {unpaired} clients of the reference have no partner and are skipped."
    return Section(f"Gain over {one_line(reference.label, 60)}", note, header, tuple(rows))


def _signed(measure: str, gain: float) -> str:
    return f"{'-' if gain < 0 else '+'}{_size(measure, abs(gain))}"


def _size(measure: str, value: float) -> str:
    return f"{100 * value:.1f}" if is_percent(measure) else metric_text(measure, value)


def records(all_gains: Sequence[Gains]) -> list[dict[str, Any]]:
    """Return one row per client and run: its value, its value in the reference run, its
    gain.
    """
    return [
        {"label": gains.row.label, **pair._asdict()}
        for gains in all_gains
        for run in gains.runs
        for pair in run
    ]

"""Reads a run folder in any state: complete, failed, or interrupted in the middle of a
line.

`read_run` reads the recorder's files (settings.toml, rounds.jsonl, clients.csv,
weights.csv, curves.json, summary.json) into a `RunFolder`. A killed run leaves missing
or truncated files, so these count as absent. Only a folder without any of them is an
error.
"""

import csv
import json
import math
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedapps.errors import UserError, refuse_first
from fedapps.formats import one_line
from fedapps.toml_text import file_text, flatten_toml, parse_toml

#: How the reasons end for which the reply of a client that diverged is not used.
BROKEN = ("not finite", "lower its learning rate")
STATES = ("running", "completed", "failed", "interrupted")


@dataclass(frozen=True)
class Failure:
    """A client reply that was not used: its round, its client and the reason."""

    round: int
    client: str
    reason: str


@dataclass(frozen=True)
class RunFolder:
    """The content of a run folder.

    `settings` is flat with dotted keys. `rounds` has one record per round, sorted.
    `clients` has one row per client of the last evaluation (numbers as int or float,
    the client's id as str), `groups` one row per group of samples, `confusion` one per
    class. `summary` is empty if it was not written.
    """

    path: Path
    settings: dict[str, Any]
    versions: dict[str, str]
    rounds: list[dict[str, Any]]
    unreadable_lines: int
    clients: list[dict[str, Any]]
    curves: dict[str, list[float]]
    summary: dict[str, Any]
    groups: list[dict[str, Any]] = field(default_factory=list)
    confusion: list[dict[str, Any]] = field(default_factory=list)

    @property
    def method(self) -> str:
        """The name of the method, or `unknown method`."""
        return one_line(str(self._setting("method", "unknown method")), 60)

    @property
    def task(self) -> str:
        """The name of the task, or an empty string."""
        return one_line(str(self._setting("task", "")), 60)

    @property
    def subject(self) -> str:
        """The subject for titles: the data set if the task is classification, otherwise
        the task.
        """
        return subject_of(self.task, self.settings.get("data.source"))

    @property
    def seed(self) -> Any:
        """The run's seed, None if unknown."""
        return self._setting("seed", None)

    @property
    def num_rounds(self) -> int | None:
        """The planned number of rounds, None if unknown."""
        value = self._setting("num-rounds", None)
        return value if isinstance(value, int) else None

    @property
    def rounds_completed(self) -> int:
        """The number of completed rounds."""
        value = self.summary.get("rounds-completed")
        return (
            value if isinstance(value, int) else max((r["round"] for r in self.rounds), default=0)
        )

    @property
    def state(self) -> str:
        """The summary's status; if it has none: `completed`, `failed` (too few rounds)
        or `interrupted` (no summary).

        A run whose process was killed keeps the status `running`.
        """
        if self.summary.get("status") in STATES:
            return str(self.summary["status"])
        if not self.summary:
            return "interrupted"
        planned = self.num_rounds
        return "failed" if planned is not None and self.rounds_completed < planned else "completed"

    @property
    def reason(self) -> str:
        """Why the run failed, or an empty string."""
        return one_line(str(self.summary.get("error", "")), 500)

    @cached_property
    def failures(self) -> list[Failure]:
        """All replies that were not used, in order."""
        return [
            Failure(
                record["round"],
                one_line(str(entry.get("client", "?")), 60),
                one_line(str(entry.get("reason", "no reason given")), 1000),
            )
            for record in self.rounds
            for entry in _entries(record.get("failures"))
        ]

    @cached_property
    def bounded(self) -> list[tuple[str, dict[str, int]]]:
        """The clients on which a bound acted, most often first, each with the number of
        rounds in which its weight was capped and its update shortened.
        """
        counts: dict[str, Counter[str]] = {}
        for record in self.rounds:
            for kind in (acts := {"capped": "weight capped", "shortened": "update shortened"}):
                clients = record.get(kind)
                for client in clients if isinstance(clients, list) else []:
                    counts.setdefault(one_line(str(client), 60), Counter())[acts[kind]] += 1
        ordered = sorted(counts.items(), key=lambda pair: -pair[1].total())
        return [(name, {act: count[act] for act in acts.values()}) for name, count in ordered]

    @cached_property
    def scored(self) -> dict[str, Any]:
        """The record of the evaluation that the run is scored with: the last one, or
        that of the best round if that is kept; {} without an evaluation.
        """
        evaluated = [record for record in self.rounds if numbers(record.get("evaluate"))]
        best = self.summary.get("scored-round")
        return next((r for r in evaluated if r["round"] == best), (evaluated or [{}])[-1])

    @property
    def scored_round(self) -> int:
        """The round of that evaluation; without one the last round."""
        return int(self.scored.get("round", self.rounds_completed))

    @property
    def chose_round(self) -> bool:
        """Whether that evaluation was chosen by validation samples (``keep-best``)."""
        return is_number(self.summary.get("scored-round"))

    def left_out(self, part: str) -> list[str]:
        """Return the clients of whose evaluation this part could not be used."""
        return [
            one_line(str(entry.get("client", "?")), 60)
            for entry in _entries(self.scored.get("left-out"))
            if str(entry.get("reason")).startswith(f"{part}: ")
        ]

    @cached_property
    def diverged(self) -> list[str]:
        """The clients whose training or last score had diverged, so that they are in no
        mean.
        """
        entries = _entries(self.scored.get("diverged"))
        named = [one_line(str(entry.get("client", "?")), 60) for entry in entries]
        broken = [f.client for f in self.failures if f.reason.endswith(BROKEN)]
        return list(dict.fromkeys([*named, *broken]))

    @cached_property
    def evaluation(self) -> dict[str, float]:
        """The metrics of the evaluation that the run is scored with."""
        return numbers(self.scored.get("evaluate"))

    @cached_property
    def numbers(self) -> dict[str, float]:
        """The summary's numbers; those it lacks are computed from the rounds."""
        derived: dict[str, float] = {
            "failures": len(self.failures),
            "rounds-completed": self.rounds_completed,
            **{
                key: sum(r[key] for r in self.rounds if is_number(r.get(key)))
                for key in ("seconds", "bytes-up", "bytes-down")
                if any(is_number(r.get(key)) for r in self.rounds)
            },
        }
        return {**derived, **self.evaluation, **numbers(self.summary)}

    @cached_property
    def weights(self) -> list[tuple[int, str, float]]:
        """The server's weights of clients, as (round, client, weight); empty for most
        methods.
        """
        rows = [
            row
            for row in csv.reader(_text(self.path / "weights.csv").splitlines())
            if len(row) == 3 and row[0].isdecimal()
        ]
        cells = [
            (int(number), one_line(client, 60), _number_or_text(weight))
            for number, client, weight in rows
        ]
        return [
            (number, client, float(w))
            for number, client, w in cells
            if is_number(w) and math.isfinite(float(w))
        ]

    @cached_property
    def counts_models(self) -> bool:
        """Whether the method itself counts the models it sends, because its messages do
        not hold one model each.
        """
        return any(record.get("counts-models") is True for record in self.rounds)

    @cached_property
    def models(self) -> dict[int, float]:
        """Cumulative number of models sent in training, in both directions, per client,
        by round; empty if they were not counted.
        """
        clients = self.settings.get("num-clients") or len(self.clients)
        clients -= self.settings.get("num-new-clients") or 0
        sums, total = {}, 0.0
        for record in self.rounds:
            total += sum(
                record[key] for key in ("models-up", "models-down") if is_number(record.get(key))
            )
            sums[record["round"]] = total / clients if clients else 0.0
        return sums if total and clients else {}

    @cached_property
    def clock(self) -> dict[int, float]:
        """Seconds of the run at the end of each round's training, by its clock; empty
        if it had none.
        """
        return {
            record["round"]: float(record["clock-seconds"])
            for record in self.rounds
            if is_number(record.get("clock-seconds"))
        }

    def series(self, part: str) -> dict[str, tuple[list[int], list[float]]]:
        """Return every numeric metric in `part` (`train` or `evaluate`): key ->
        (rounds, values).
        """
        curves: dict[str, tuple[list[int], list[float]]] = {}
        for record in self.rounds:
            for key, value in numbers(record.get(part)).items():
                xs, ys = curves.setdefault(key, ([], []))
                xs.append(record["round"])
                ys.append(value)
        return curves

    def column(self, name: str) -> list[float]:
        """Return the finite values of one column of clients.csv, in its order."""
        return [
            row[name]
            for row in self.clients
            if is_number(row.get(name)) and math.isfinite(row[name])
        ]

    def _setting(self, key: str, default: Any) -> Any:
        return self.summary.get(key, self.settings.get(key, default))


def _entries(value: object) -> list[dict[str, Any]]:
    """Return the objects in a JSON list; [] for anything else."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def subject_of(task: str, source: object) -> str:
    """Return the data set of a classification, otherwise the task."""
    if task != "classification" or not isinstance(source, str):
        return task
    # For a folder the last component is enough; a hub name (`owner/name`) is kept in
    # full.
    is_folder = source.startswith((".", "/", "~")) or "\\" in source
    return one_line(Path(source).name if is_folder else source, 60)


def is_number(value: object) -> bool:
    """Return whether a JSON value is a number (a bool is not)."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def as_float(value: object) -> float:
    """Return a JSON value as a number, NaN if it is none."""
    return float(value) if isinstance(value, int | float) else math.nan


def numbers(table: object) -> dict[str, float]:
    """Return the numeric entries of a JSON object; empty for anything else."""
    return {str(k): v for k, v in table.items() if is_number(v)} if isinstance(table, dict) else {}


def parse_round(line: str | bytes) -> dict[str, Any] | None:
    """Return the record in one line of rounds.jsonl, or None if it is not a round's
    record (a truncated line).
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    number = record.get("round")
    return record if isinstance(number, int) and not isinstance(number, bool) else None


def run_folder(folder: Path) -> Path:
    """Return ``folder`` if it holds a run. Otherwise raise ``UserError``, which names
    the runs if the folder holds a sweep.
    """
    if (folder / "settings.toml").is_file():
        return folder
    hint = (
        f"; the runs of this sweep are {folder}/cells/*"
        if next(folder.glob("cells/*/settings.toml"), None)
        else ""
    )
    raise UserError(f"{folder} holds no run: it has no settings.toml{hint}")


def read_run(run_dir: Path | str) -> RunFolder:
    """Read a run folder; raises UserError if `run_dir` is not one."""
    path = Path(run_dir)
    refuse_first(
        (
            not path.is_dir(),
            f"{path} is not a folder: give the results folder of a run",
        ),
        (
            not any(
                (path / name).is_file()
                for name in ("settings.toml", "rounds.jsonl", "summary.json")
            ),
            f"{path} holds no run: it has no settings.toml, rounds.jsonl or summary.json. Give "
            "the results folder of a run.",
        ),
    )
    settings, versions = _read_settings(path / "settings.toml")
    rounds, unreadable = _read_rounds(path / "rounds.jsonl")
    curves = read_json(path / "curves.json")
    return RunFolder(
        path=path,
        settings=settings,
        versions=versions,
        rounds=rounds,
        unreadable_lines=unreadable,
        clients=read_table(path / "clients.csv", "client"),
        groups=read_table(path / "groups.csv", "group"),
        confusion=read_table(path / "confusion.csv", "actual"),
        curves={
            k: v for k, v in curves.items() if isinstance(v, list) and v and all(map(is_number, v))
        },
        summary=read_json(path / "summary.json"),
    )


def _text(path: Path) -> str:
    try:
        if path.is_symlink() and not path.resolve().is_relative_to(path.parent.resolve()):
            return ""  # a folder from elsewhere must not put other files into a report
        return file_text(path, errors="replace")
    except (OSError, RuntimeError):  # a loop of links
        return ""


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; {} if it cannot be read."""
    try:
        value = json.loads(_text(path) or "{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _read_settings(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    try:
        table = parse_toml(_text(path))
    except tomllib.TOMLDecodeError:
        return {}, {}
    versions = table.pop("versions", {})
    named = versions.items() if isinstance(versions, dict) else ()
    return flatten_toml(table), {name: str(version) for name, version in named}


def _read_rounds(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the records sorted by round, and the number of unreadable lines; a
    truncated last line is normal and not counted.
    """
    lines = _text(path).split("\n")
    by_round: dict[int, dict[str, Any]] = {}
    unreadable = 0
    for index, line in enumerate(lines):
        record = parse_round(line)
        if record is not None:
            # A run resumed from an older checkpoint repeats rounds: the later record is
            # used.
            by_round[record["round"]] = record
        elif line.strip() and index < len(lines) - 1:
            unreadable += 1
    return [by_round[number] for number in sorted(by_round)], unreadable


def read_table(path: Path, name: str) -> list[dict[str, Any]]:
    """Return the rows of a CSV file that have a cell in the column `name`, which stays
    text; other cells become numbers.
    """
    rows = []
    for raw in csv.DictReader(_text(path).splitlines()):
        row: dict[str, Any] = {}
        for key, value in raw.items():
            # DictReader puts cells beyond the header under the key None, and uses None
            # for cells missing in a truncated line.
            if key is None or value is None or value == "":
                continue
            row[key] = value if key == name else _number_or_text(value)
        if name in row:
            rows.append(row)
    return rows


def _number_or_text(value: str) -> float | int | str:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value

"""Writes a run's folder during the run: settings.toml, rounds.jsonl, clients.csv,
weights.csv, curves.json, summary.json, the model.

Every file is complete after every round, so that an interrupted run can be read,
reported and resumed. Text that does not fit on the disk waits for a later round. If it
is still missing at the end, the run has not completed. ``bytes-up`` and ``bytes-down``
count the training phases, which are the method's cost; evaluation is counted
separately. They assume one node per client. Where clients share nodes,
``travelled-up`` and ``travelled-down`` are the bytes that really went to
``node-messages`` nodes and back.
"""

import csv
import json
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from logging import WARNING
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.common import log
from safetensors import SafetensorError
from safetensors.numpy import save_file

from fedapps import __version__
from fedapps.algorithms.fairness.groups import Groups
from fedapps.clients.base.scores import ROW_COLUMNS, ROWS
from fedapps.records.best import SCORES, Best, scores
from fedapps.records.files import Files, csv_text, replace
from fedapps.records.lock import RUN_ID, FolderLock
from fedapps.records.measures import (
    mean_curves,
    newcomer_measures,
    newcomer_rows,
    pooled_errors,
    sound,
    summarise,
)
from fedapps.records.reader import read_table
from fedapps.records.releases import RELEASES
from fedapps.records.rounds import NAME as DATA, NEW_CLIENTS, read_rounds
from fedapps.records.tables import confusion_table, group_table, pooled_concordance
from fedapps.records.time_log import FILE as TIMES
from fedapps.records.uncertainty import as_numbers, of_clients
from fedapps.strategies.base.capabilities import (
    DecidingWeights,
    SpendingPrivacy,
    counted_models,
    own_measures,
    replies_of,
)
from fedapps.strategies.base.named_grid import Exchange, called
from fedapps.strategies.base.rounds import Ending, Observer, Round
from fedapps.toml_text import Value, to_toml

# The files of a run. No other files in its folder are ever deleted.
FILES = (
    "settings.toml",
    DATA,
    "rounds.jsonl",
    "clients.csv",
    "test-rows.csv",
    "groups.csv",
    "confusion.csv",
    "weights.csv",
    "curves.json",
    "summary.json",
    "report.html",
    "model.safetensors",
    "run.log",
    TIMES,
    RELEASES,
)
FOLDERS = ("checkpoint", "clients", "synthetic", "tensorboard", "mlflow", "wandb")
# Approximate maximum number of rows of weights.csv. A run that would exceed it records
# only every second, third, ... round.
MAX_WEIGHTS = 100_000


class Recorder(Observer):
    """Records rounds into ``folder``."""

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Value],
        task: str,
        strategy: Any,
        done: int = 0,
        groups: Groups | None = None,
        names: Sequence[str] = (),
        classes: Sequence[str] = (),
        best: Best | None = None,
        lock: FolderLock | None = None,
    ) -> None:
        """Open the folder. ``done``: number of rounds in the checkpoint to resume from;
        records of later rounds are dropped.

        Raises ``OSError`` if the folder cannot be written. Its content is then
        unchanged or dropped.

        ``config``: the run's settings, with dotted keys.
        ``strategy``: its ``last_weights`` are recorded if it decides weights.
        ``groups``: the groups of test samples, if clients report sums for groups.
        ``names``: names of clients 0, 1, ..., which replace their numbers in all files.
        ``classes``: their names, if known. ``best``: chooses the round that the run is
        scored with, by default the last one. ``lock``: held on the folder; rows get its
        run id.
        """
        self.folder = folder
        self.files = Files(folder, lock.check) if lock else Files(folder)
        self.origin = {RUN_ID: lock.run} if lock else {}
        self.strategy = strategy
        self.groups = groups
        self.names = names
        self.classes = classes
        self.best = best or Best()
        #: The last record, the line of rounds.jsonl.
        self.row: dict[str, Any] = {}
        self.num_rounds = int(config["num-rounds"])
        self.wants_rows = bool(config.get("data.test-rows"))
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        rows = [row for row in read_rounds(folder) if row["round"] <= done]
        self.last_evaluation: dict[str, float] = {}
        self.completed = self.failures = self.capped = self.shortened = 0
        self.models: dict[str, int] = {}
        self.clock: float | None = None
        self.totals = {"seconds": 0.0, **dict.fromkeys(BYTES, 0)}
        for row in rows:
            self._count(row)
        self.best.at_checkpoint = self.best.round
        for name, text in self.best.tables.items():
            self.files.replace(name, text)
        self.facts = {
            "method": config["method"],
            "task": task,
            "seed": config["seed"],
            "num-rounds": self.num_rounds,
        }
        stored = {k: v for k, v in config.items() if k not in ("out", "resume")}
        self.files.replace(
            "settings.toml", to_toml(stored | {f"versions.{k}": v for k, v in versions().items()})
        )
        self.files.replace("rounds.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        self._keep_weights(done)
        self.finish("running")

    def __call__(self, now: Round) -> None:
        """Record a round. An error while writing is logged and does not end the run."""
        written = dict[str, str]()
        row: dict[str, Any] = {
            "round": now.number,
            "clients": list(map(self.called, now.trained.clients)),
            "failures": [{"client": f.called, "reason": f.reason} for f in now.failures],
            "train": {**(now.train_metrics or {})},
            "bytes-up": now.trained.bytes_up,
            "bytes-down": now.trained.bytes_down,
            **_travelled("", now.trained),
            "seconds": round(now.seconds, 4),
            **self.origin,
            **self._models(now),
            **{
                name: list(map(self.called, clients))
                for name, clients in (
                    ("capped", now.trained.capped),
                    ("shortened", now.trained.shortened),
                    ("late", now.trained.late),
                )
                if clients
            },
            **_times(now.trained),
            # ids, which a resumed run needs
            **({NEW_CLIENTS: list(now.new_clients)} if now.number == 1 and now.new_clients else {}),
        }
        if now.evaluated is not None:
            weighted: dict[str, Any] = dict(now.evaluate_metrics or {})
            if now.scorable is False:
                row["unusable"] = True
            scored, diverged = sound(now.evaluated.metrics)
            if diverged:
                row["diverged"] = [{**d, "client": self.called(d["client"])} for d in diverged]
            if self.best.compares:
                row[SCORES] = scores(scored, [d["client"] for d in diverged])
            of_clients = {name for values in scored.values() for name in values}
            # kept even if a client sends a metric of the same name
            own = own_measures(self.strategy)
            row["evaluate"] = {
                name: value
                for name, value in weighted.items()
                if name in own or name not in of_clients
            }
            row["evaluate"] |= summarise(scored) | pooled_errors(scored)
            for name, value in ({} if diverged else weighted).items():
                if name.endswith(("loss", "accuracy", "auroc")) and not isinstance(value, list):
                    row["evaluate"][f"{name}-weighted"] = value
            newcomers = now.newcomers or Exchange()
            row["evaluate"] |= newcomer_measures(newcomers.metrics)
            row["evaluate-bytes-up"] = now.evaluated.bytes_up + newcomers.bytes_up
            row["evaluate-bytes-down"] = now.evaluated.bytes_down + newcomers.bytes_down
            row |= _travelled("evaluate-", now.evaluated)
            written |= self._clients_texts(scored, newcomer_rows(newcomers.metrics))
            metrics = {self.called(c): m for c, m in scored.items()}
            tables = [
                ("confusion.csv", confusion_table(self.classes, metrics)),
                ("", pooled_concordance(metrics)),
            ]
            if self.groups is not None:
                tables.append(("groups.csv", group_table(self.groups, metrics)))
            for name, (table, measures, left_out) in tables:
                if table:
                    written[name] = csv_text(table)
                row["evaluate"] |= measures
                if left_out:
                    row["left-out"] = row.get("left-out", []) + left_out
        self.row = row
        if self._count(row):
            for name, text in written.items():
                self.files.replace(name, text)
            if self.best.keep:
                self.best.arrays, self.best.tables = now.arrays, written
        self.files.append("rounds.jsonl", json.dumps(row) + "\n")
        # without replies the strategy still holds the weights of an earlier round
        if now.trained.clients:
            self._write_weights(
                now.number,
                self.strategy.last_weights if isinstance(self.strategy, DecidingWeights) else {},
            )
        try:
            self.finish("running")
        except OSError as error:
            log(
                WARNING,
                "round %d cannot be recorded yet: %s. The run continues and tries again later.",
                now.number,
                error,
            )

    def called(self, client: int | str) -> int | str:
        """Return what people call a client."""
        return called(client, self.names)

    def _models(self, now: Round) -> dict[str, int]:
        """Return the number of models sent in training: counted by the method, or one
        per message if messages are models.
        """
        if counted := counted_models(self.strategy):
            return {**counted, "counts-models": True}
        if replies_of(self.strategy) == "model":
            return {
                "models-up": len(now.trained.clients),
                "models-down": len(now.trained.clients) + len(now.trained.failures)
                if now.trained.clock is None
                else now.trained.sent,
            }
        return {}

    def _count(self, row: Mapping[str, Any]) -> bool:
        """Add a round to the totals; return whether the run is scored with it so
        far.
        """
        # Running totals: a run of 100,000 rounds must not sum over all past rounds
        # after each round.
        self.completed = row["round"]
        self.failures += len(row["failures"])
        self.capped += len(row.get("capped", ()))
        self.shortened += len(row.get("shortened", ()))
        if scored := self.best.note(row):
            self.last_evaluation = row["evaluate"]
        for key in self.totals:
            self.totals[key] += row.get(key, 0)
        self.clock = row.get(CLOCK, self.clock)
        for key in MODELS:
            if key in row:
                self.models[key] = self.models.get(key, 0) + row[key]
        return scored

    def end(self, ending: Ending) -> None:
        """Write the final model, if there is one, and how the run ended."""
        try:
            if ending.arrays is not None:
                self.save_model(ending.arrays)
        finally:
            self.summary = self.finish(ending.status, ending.reason)

    def finish(self, status: str, error: str = "") -> dict[str, Any]:
        """Write summary.json with this status (running, completed, failed, interrupted)
        and all waiting texts; return the summary.

        Raises ``OSError`` if something could not be written.
        """
        if status != "running":
            self.files.write()  # tables are read again below
        summary = {
            **self.facts,
            "status": status,
            "rounds-completed": self.completed,
            "failures": self.failures,
            **({"capped-weights": self.capped} if self.capped else {}),
            **({"shortened-updates": self.shortened} if self.shortened else {}),
            "seconds": round(self.totals["seconds"], 3),
            **({CLOCK: self.clock} if self.clock is not None else {}),
            **{key: self.totals[key] for key in BYTES},
            **self.models,
            **self.last_evaluation,
            **(
                as_numbers(
                    of_clients(
                        read_table(self.folder / "clients.csv", "client"), self.facts["seed"]
                    )
                )
                if status != "running"
                else {}
            ),
            **(self.strategy.privacy_spent() if isinstance(self.strategy, SpendingPrivacy) else {}),
            **({"scored-round": self.best.round} if self.best.keep and self.best.round else {}),
            **(
                {"stopped-early": True}
                if self.best.exhausted and self.completed < self.num_rounds
                else {}
            ),
            **({"error": error} if error else {}),
        }
        self.files.replace("summary.json", json.dumps(summary, indent=1))
        self.files.write()
        return summary

    def save_model(self, arrays: ArrayRecord) -> None:
        """Write the final global model, or that of the best round if that is kept.
        Raises ``OSError``.
        """
        if not (arrays := self.best.arrays or arrays):
            return
        model = {name: np.asarray(array.numpy(), order="C") for name, array in arrays.items()}
        try:
            replace(self.folder / "model.safetensors", lambda path: save_file(model, path))
        except SafetensorError as error:  # safetensors raises it for an OSError
            raise OSError(f"the model cannot be written: {error}") from error

    def _clients_texts(
        self,
        metrics: Mapping[int | str, Mapping[str, Any]],
        newcomers: Mapping[int | str, Mapping[str, Any]],
    ) -> dict[str, str]:
        # A client may lack a metric that others have: AUROC, for example, if it has a
        # single class.
        everyone = [*metrics.items(), *newcomers.items()]
        scalars = list(
            dict.fromkeys(
                n for _, values in everyone for n, v in values.items() if not isinstance(v, list)
            )
        )
        rows = [
            [self.called(client), *(values.get(name, "") for name in scalars)]
            for client, values in everyone
        ]
        clients = [["client", *scalars], *rows]
        curves = mean_curves(metrics)
        rows = [
            [self.called(client), *values[ROWS][at : at + 3]]
            for client, values in metrics.items()
            if isinstance(values.get(ROWS), list)
            for at in range(0, len(values[ROWS]), 3)
        ]
        if self.wants_rows and not rows:
            self.wants_rows = False  # said once
            log(WARNING, "%s.csv is not written: no client reports results of single rows", ROWS)
        return {
            "clients.csv": csv_text(clients),
            **({ROWS + ".csv": csv_text([["client", *ROW_COLUMNS], *rows])} if rows else {}),
            **({"curves.json": json.dumps(curves)} if curves else {}),
        }

    def _write_weights(self, number: int, weights: Mapping[int | str, float]) -> None:
        every = -(-self.num_rounds * len(weights) // MAX_WEIGHTS)  # the same after a resume
        if not weights or (number - 1) % every:
            return
        rows: list[list[Any]] = (
            [] if self.files.begun("weights.csv") else [["round", "client", "weight"]]
        )
        rows += [
            [number, self.called(client), f"{weight:.6g}"] for client, weight in weights.items()
        ]
        self.files.append("weights.csv", csv_text(rows))

    def _keep_weights(self, done: int) -> None:
        """Truncate weights.csv after round ``done``."""
        path = self.folder / "weights.csv"
        if not path.exists():
            return
        with path.open(newline="", encoding="utf-8") as file:
            kept = [
                row
                for row in csv.reader(file)
                if row and (row[0] == "round" or (row[0].isdigit() and int(row[0]) <= done))
            ]
        if len(kept) < 2:
            path.unlink()
            return
        self.files.replace("weights.csv", csv_text(kept))


def _travelled(prefix: str, exchange: Exchange) -> dict[str, float]:
    """Return the bytes that went to nodes and back in a phase, if they differ from what
    the clients sent and received, and what else is known of the way.
    """
    if exchange.travel is None:
        return {}
    facts = {
        "travelled-up": exchange.travel.up,
        "travelled-down": exchange.travel.down,
        "node-messages": exchange.travel.messages,
        **exchange.travel.facts,
    }
    return {prefix + name: value for name, value in facts.items()}


def _times(trained: Exchange) -> dict[str, float]:
    """Return the seconds of the run at the end of a training phase, by its clock, and
    the mean age of the replies in updates of the model, if there are older ones.
    """
    if trained.clock is None:
        return {}
    ages = [trained.ages.get(client, 0) for client in trained.clients]
    aged = {"reply-age": round(fmean(ages), 4)} if any(ages) else {}
    return {CLOCK: round(trained.clock, 6), **aged}


MODELS = ("models-up", "models-down")
#: Key of the seconds of a run, by its clock.
CLOCK = "clock-seconds"
BYTES = ("bytes-up", "bytes-down", "evaluate-bytes-up", "evaluate-bytes-down")


def versions() -> dict[str, str]:
    """Return the versions of the software that results may depend on."""
    packages = {name: version(name) for name in ("flwr", "torch", "numpy")}
    return {"python": platform.python_version(), "fedapps": __version__, **packages}

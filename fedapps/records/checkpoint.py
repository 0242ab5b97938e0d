"""Checkpoints of a run: the model, the strategy's state and the round, so that a
resumed run equals an uninterrupted one.

A checkpoint is a folder of safetensors files, named by its round. The old one is
deleted only after the new one has been written, and after at least half of the clients
could score the new model or train from it (``strategies.base.rounds.usable``). So there
is always a complete checkpoint, and one poisoned reply cannot end a run for good: a
model that most clients could not use is deleted, and a resumed run continues from the
one before.
"""

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.common import log
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from fedapps.errors import UserError
from fedapps.notes import logger
from fedapps.records.best import Best
from fedapps.records.files import Files, flush
from fedapps.records.lock import RUN_ID
from fedapps.strategies.base.capabilities import Stateful
from fedapps.strategies.base.rounds import Ending, Observer, Round
from fedapps.strategies.base.timing import Timing

#: An empty file in a checkpoint whose model was of use to the clients.
SOUND = "sound"
#: Key of the names of clients' folders, beside that of the run.
KEPT = "kept"


@dataclass
class Checkpoints(Observer):
    """Writes a checkpoint every ``every`` rounds (0: never) into
    ``folder``.

    ``run``: the run's id. ``record``: the files with the rounds. While they wait for
    disk space no checkpoint is written: a run resumed from it would lack those rounds.
    """

    folder: Path
    strategy: Any
    every: int
    run: str = ""
    last: int = 0
    latest: Round | None = None
    record: Files | None = None
    best: Best = field(default_factory=Best)
    #: The clock, whose state is saved, too.
    timing: Timing | None = None
    #: The model of the last checkpoint while it is not known to be of use, and that of
    #: the last round, with what is known of it.
    pending: ArrayRecord | None = None
    model: ArrayRecord | None = None
    verdict: bool | None = None
    #: The model that the run was resumed with, its run, and the clients' folders then.
    resumed: ArrayRecord | None = None
    origin: str = ""
    kept: Sequence[str] = ()

    def __call__(self, now: Round) -> None:
        """Write a checkpoint if one is due. An error while writing is logged and does
        not end the run.

        A round with a fault gets no checkpoint: a resumed run must repeat it.
        """
        if self.pending is not None:  # training began with that model
            self._judge(now.trainable if self.pending is self.model else None)
        known = now.trainable if now.arrays is self.model else None
        kept = self.verdict if now.arrays is self.model else None
        self.model = now.arrays
        self.verdict = next((v for v in (now.scorable, known, kept) if v is not None), None)
        if self.pending is not None:
            self._judge(self.verdict if self.pending is self.model else None)
        self.latest = None if now.fault else now
        if not now.fault and self.every and now.number % self.every == 0:
            self._try(now)

    @property
    def others(self) -> list[int]:
        """The rounds of checkpoints before the last one."""
        return [number for number in _rounds(self.folder) if number != self.last]

    def end(self, ending: Ending) -> None:
        """Write a checkpoint of the latest round even if none is due, for a run that
        ends early; not of a model that most clients could not use.

        A resumed run that fails before any client could use its model deletes that
        checkpoint, if there is a sound one before it.
        """
        if not ending.resumable:
            return
        if self.model is not None and self.model is self.resumed:
            if self.pending is not None and self.others:
                self._judge(False)
            return
        if self.every and self.latest and self.latest.number != self.last:
            self._try(self.latest)

    def _judge(self, verdict: bool | None) -> None:
        """Take what is known of the last checkpoint's model: delete the checkpoints
        before it, or itself.
        """
        try:
            if verdict:
                (self.folder / str(self.last) / SOUND).touch()
                self._delete(self.others)
            elif verdict is False:
                log(
                    WARNING,
                    "the checkpoint of round %d is deleted: most clients could not use its model",
                    self.last,
                )
                self._delete([self.last])
                self.last = max(_rounds(self.folder), default=0)
        except OSError as error:
            log(WARNING, "the checkpoint of round %d: %s. The run continues.", self.last, error)
            return
        if verdict is not None:
            self.pending = None

    def _delete(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            shutil.rmtree(self.folder / str(number), ignore_errors=True)

    def _try(self, now: Round) -> None:
        why = ""
        if self.verdict is False:
            why = "most clients could not use its model."
        elif self.record is not None and self.record.behind:
            why = "its record is not on disk yet. The run continues."
        else:
            try:
                self.save(now.number, now.arrays)
            except (OSError, SafetensorError) as error:
                # the incomplete checkpoint is useless, and the disk may be full
                shutil.rmtree(self.folder / f"{now.number}.partial", ignore_errors=True)
                why = f"{error}. The run continues."
        if why:
            log(WARNING, "no checkpoint after round %d: %s", now.number, why)

    def save(self, number: int, arrays: ArrayRecord) -> None:
        """Write the checkpoint of a round, then delete older ones, except the last
        sound one if this model is not known to be of use.
        """
        partial, final = self.folder / f"{number}.partial", self.folder / str(number)
        for draft in self.folder.glob("*.partial"):  # a kill left it, in whatever round
            shutil.rmtree(draft, ignore_errors=True)
        partial.mkdir(parents=True)
        _save(partial / "model.safetensors", _arrays(arrays))
        # the order of the arrays, since safetensors sorts them
        (partial / "names.json").write_text(json.dumps(list(arrays)), encoding="utf-8")
        (partial / "run.json").write_text(
            json.dumps({RUN_ID: self.run, KEPT: self._kept()}), encoding="utf-8"
        )
        if self.best.arrays:
            (partial / "best").mkdir()
            _save(partial / "best" / "model.safetensors", _arrays(self.best.arrays))
            for name, text in self.best.tables.items():
                (partial / "best" / name).write_text(text, encoding="utf-8")
        if isinstance(self.strategy, Stateful):
            _save(partial / "strategy.safetensors", self.strategy.state_dict())
        if self.timing:
            _save(partial / "timing.safetensors", self.timing.state_dict())
        if self.verdict:
            (partial / SOUND).touch()
        shutil.rmtree(final, ignore_errors=True)
        # on disk before older ones go: the machine may lose its power
        flush([*partial.rglob("*"), partial])
        partial.rename(final)
        flush([self.folder])
        sound = [n for n in _rounds(self.folder) if (self.folder / str(n) / SOUND).exists()]
        self._delete([n for n in _rounds(self.folder) if n not in (number, max(sound, default=0))])
        self.pending = None if self.verdict else arrays
        self.last, self.best.at_checkpoint = number, self.best.round

    def load(self) -> tuple[int, ArrayRecord]:
        """Restore the strategy from the newest checkpoint; return its round and model,
        or (0, empty record) if there is none.
        """
        if not (rounds := _rounds(self.folder)):
            return 0, ArrayRecord()
        self.last = max(rounds)
        path = self.folder / str(self.last)
        try:
            names = json.loads((path / "names.json").read_text(encoding="utf-8"))
            arrays = load_file(path / "model.safetensors")
            if (path / "best").is_dir():
                best = load_file(path / "best" / "model.safetensors")
                self.best.arrays = ArrayRecord({name: Array(best[name]) for name in names})
                self.best.tables = {
                    file.name: file.read_text(encoding="utf-8")
                    for file in (path / "best").iterdir()
                    if file.name != "model.safetensors"
                }
            state = (
                load_file(path / "strategy.safetensors")
                if (path / "strategy.safetensors").exists()
                else {}
            )
            if self.timing:
                self.timing.load_state_dict(load_file(path / "timing.safetensors"))
            facts = json.loads((path / "run.json").read_text(encoding="utf-8"))
            self.origin, self.kept = facts[RUN_ID], facts[KEPT]
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path}: the checkpoint cannot be read ({error}). Start again with --overwrite."
            ) from error
        if isinstance(self.strategy, Stateful):
            self.strategy.load_state_dict(state)
        self.resumed = self.model = ArrayRecord({name: Array(arrays[name]) for name in names})
        self.pending = None if (path / SOUND).exists() else self.model
        return self.last, self.model

    def _kept(self) -> list[str]:
        """Return the folders of the clients that keep something on this machine."""
        return sorted(path.name for path in (self.folder.parent / "clients").glob("*"))

    def check_origin(self, rounds: Iterable[Mapping[str, Any]]) -> None:
        """Raise ``UserError`` if the loaded checkpoint is of another run than the
        record of its round: two runs wrote to the folder. Warn of clients whose folders
        are gone since.
        """
        if not self.last:
            return
        if gone := sorted(set(self.kept) - set(self._kept())):
            logger.warning(
                "%s: what %d clients kept is gone since the checkpoint of round %d, and they begin "
                "anew: %s%s",
                self.folder.parent / "clients",
                len(gone),
                self.last,
                ", ".join(gone[:5]),
                ", ..." if len(gone) > 5 else "",
            )
        row = next((row for row in rounds if row["round"] == self.last), {})
        if row.get(RUN_ID, self.origin) != self.origin:
            raise UserError(
                f"{self.folder.parent}: the checkpoint of round {self.last} is of run "
                f"{self.origin}, the record of that round of run {row[RUN_ID]}: two runs wrote "
                "to this folder. Start again with --overwrite."
            )


def _arrays(record: ArrayRecord) -> dict[str, NDArray[Any]]:
    return {name: array.numpy() for name, array in record.items()}


def _save(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    # ascontiguousarray would turn a 0-d array into a 1-d one
    save_file({name: np.asarray(array, order="C") for name, array in arrays.items()}, path)


def _rounds(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.glob("*") if path.is_dir() and path.name.isdigit()]

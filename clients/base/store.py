"""Client state that persists between rounds (a personal model, dual variables): an
interface and two implementations.

``MessageStore`` keeps it in Flower's ``context.state``: it needs no setup, but in a
simulation the whole state is transferred with every message, and a restart of the
SuperNode loses it. ``DiskStore`` keeps it in safetensors files on the client's disk,
written atomically, one version per round, so that a run resumed from a checkpoint finds
the client's state at that checkpoint.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from fedapps.algorithms.common.averaging import Arrays
from fedapps.algorithms.contract.sent import RoundFacts
from fedapps.algorithms.contract.wire import fields, read
from fedapps.clients.base.options import Config


class Store(Protocol):
    """Stores named lists of arrays for one client. ``config`` is the configuration of
    the message being answered.
    """

    def load(self, name: str, config: Config, before: bool) -> Arrays | None:
        """Return the arrays saved last, or ``None``; with ``before`` (for training)
        only those of earlier rounds.
        """

    def save(self, name: str, arrays: Sequence[NDArray[Any]], config: Config) -> None:
        """Save arrays under ``name`` for the message's round; arrays that are not
        :func:`sound` leave the last version in place.
        """


def sound(store: "Store", name: str, arrays: Sequence[NDArray[Any]], config: Config) -> bool:
    """Return whether all values are finite, or infinite where they are in the version
    before, as those of a mask; a first version may hold any infinity.
    """
    if all(np.isfinite(array).all() for array in arrays if array.dtype.kind in "fc"):
        return True
    kept = store.load(name, config, before=True) or arrays
    return len(arrays) == len(kept) and all(
        np.array_equal(np.isinf(a), np.isinf(b)) and not np.isnan(a).any()
        for a, b in zip(arrays, kept, strict=True)
    )


class MessageStore:
    """Stores arrays in Flower's ``context.state``; keeps the last version only,
    whatever its round.
    """

    def __init__(self, state: RecordDict) -> None:
        self.state = state

    def load(self, name: str, config: Config, before: bool) -> Arrays | None:
        """Return the arrays saved last, or ``None``."""
        record = self.state.get(f"store.{name}")
        return (
            [read(array).copy() for array in record.values()]
            if isinstance(record, ArrayRecord)
            else None
        )

    def save(self, name: str, arrays: Sequence[NDArray[Any]], config: Config) -> None:
        """Save arrays into the context."""
        if not sound(self, name, arrays, config):
            return
        self.state[f"store.{name}"] = ArrayRecord(
            {str(i): Array(*fields(array)) for i, array in enumerate(arrays)}
        )


class DiskStore:
    """Stores arrays in ``folder``, as ``NAME.ROUND.RUN.safetensors``.

    ``run``: an id that differs between an interrupted run and its continuation.
    Versions of other runs are used only if they are from before this run's first round
    (``first-round`` in the configuration), so that what an interrupted run did after
    its last checkpoint is discarded. It keeps the newest version and those that belong
    to the last checkpoint (``checkpoint-round``), to the one before it, which a run
    needs if the model of the last one turns out to be broken, and to ``kept-rounds``.
    Without checkpoints it keeps the one before the newest: a message that comes twice
    starts from it again.
    """

    def __init__(self, folder: Path, run: str | int) -> None:
        self.folder, self.run = folder, str(run)

    def load(self, name: str, config: Config, before: bool) -> Arrays | None:
        """Return the newest valid version, or ``None``. Raises ``ValueError`` if its
        file cannot be read.
        """
        facts = RoundFacts.from_config(config)
        now = facts.server_round
        versions = self._versions(name, config)
        rounds = [r for r in versions if (r < now if before else r <= now)]
        if not rounds:
            return None
        path = versions[max(rounds)]
        try:
            tensors = load_file(path)
        except (SafetensorError, OSError) as error:
            raise ValueError(
                f"{path} cannot be read ({error}): delete it to start this client's state anew"
            ) from error
        return [tensors[str(i)] for i in range(len(tensors))]

    def save(self, name: str, arrays: Sequence[NDArray[Any]], config: Config) -> None:
        """Write this round's version, then delete the others, except those that a
        resume or the best round needs.
        """
        if not sound(self, name, arrays, config):
            return
        facts = RoundFacts.from_config(config)
        now = facts.server_round
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # a personal model is private
        path = self.folder / f"{name}.{now}.{self.run}.safetensors"
        partial = path.with_suffix(f".{os.getpid()}.partial")
        save_file({str(i): np.asarray(array, order="C") for i, array in enumerate(arrays)}, partial)
        partial.replace(path)
        for draft in self.folder.glob("*.partial"):  # of processes that were killed
            if f".{now}.{self.run}." not in draft.name:
                draft.unlink(missing_ok=True)
        last = now - 1 if facts.checkpoint_round is None else min(now, facts.checkpoint_round)
        versions = self._versions(name, config)
        kept = {
            max((r for r in versions if r <= needed), default=0)
            for needed in (last, now, *facts.kept_rounds)
        }
        if facts.checkpoint_round:
            at_last = max((r for r in versions if r <= last), default=0)
            kept.add(max((r for r in versions if r < at_last), default=0))
        for server_round, old in versions.items():
            if server_round not in kept:
                old.unlink(missing_ok=True)

    def _versions(self, name: str, config: Config) -> dict[int, Path]:
        """Return round -> file of the versions valid for this run; its own take
        precedence over another run's.
        """
        first = RoundFacts.from_config(config).first_round
        pattern = re.compile(rf"{re.escape(name)}\.(\d+)\.(.+)\.safetensors")
        files: dict[int, Path] = {}
        for entry in sorted(os.listdir(self.folder)) if self.folder.is_dir() else []:
            if match := pattern.fullmatch(entry):
                server_round, run = int(match[1]), match[2]
                if run == self.run or (server_round < first and server_round not in files):
                    files[server_round] = self.folder / entry
        return files

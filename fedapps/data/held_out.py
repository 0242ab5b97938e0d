"""What clients are scored on if the data have a test split of their own (``data.test``).

Natural clients are scored on their own samples of that split. If none of them has any, since the split is about other people, every
client is scored on all of it: how well its model serves people nobody trained on. Dealt clients get samples of each class in
proportion to those that they train on. Either way all samples of ``data.split`` are for training.
"""

import numpy as np
import numpy.typing as npt

from algorithms.common.seeds import generator
from fedapps.data.images import Images
from fedapps.data.options import DataOptions
from fedapps.errors import UserError

Indices = npt.NDArray[np.int64]


def test_parts(images: Images, parts: list[Indices], options: DataOptions, seed: int) -> list[Indices] | None:
    """Return the rows of ``data.test`` that each client is scored on, given those that it trains on; None without such a split.

    Raises ``UserError`` if some clients have samples there and others have none.
    """
    if images.held_out is None:
        return None
    rows = np.flatnonzero(images.held_out)
    if images.natural is None:
        return _in_proportion(images.labels, parts, rows, options, seed)
    owner = images.natural[rows]
    own = [rows[owner == images.natural[part[0]]] for part in parts]
    without = [images.names[images.natural[part[0]]] for part, mine in zip(parts, own, strict=True) if not len(mine)]
    if len(without) == len(parts):
        return [rows] * len(parts)
    if without:
        shown = ", ".join(without[:5]) + (", ..." if len(without) > 5 else "")
        raise UserError(
            f"data.test = {options.test!r}: {len(without)} of the {len(parts)} clients have no sample in it ({shown}), the others "
            "have: mend the split, or leave data.test '' to score each client on a part of its own"
        )
    return own


def scored_on(images: Images, parts: list[Indices], tests: list[Indices], options: DataOptions) -> str:
    """Return one line that says what the clients are scored on."""
    assert images.held_out is not None
    total = int(images.held_out.sum())
    if images.natural is None:
        return f"data.test = {options.test!r}: its {total} samples are dealt to the {len(parts)} clients in proportion to their classes"
    if images.natural[tests[0][0]] != images.natural[parts[0][0]]:
        people = len(np.unique(images.natural[images.held_out]))
        return (
            f"data.test = {options.test!r}: none of the {len(parts)} clients is in it, so each is scored on all {total} samples of its "
            f"{people} others, whom nobody trains on"
        )
    used = sum(map(len, tests))
    rest = f"; {total - used} samples of others are left out" if used < total else ""
    return (
        f"data.test = {options.test!r}: each of the {len(parts)} clients is scored on its own samples there, {used} in all{rest}"
    )


def _in_proportion(
    labels: npt.NDArray[np.int64], parts: list[Indices], rows: Indices, options: DataOptions, seed: int
) -> list[Indices]:
    rng = generator(seed, "held-out partition")
    own: list[list[Indices]] = [[] for _ in parts]
    for label in np.unique(labels[rows]):
        pool = rng.permutation(rows[labels[rows] == label])
        counts = np.array([np.count_nonzero(labels[part] == label) for part in parts])
        if not counts.sum():
            continue  # a class that nobody trains on
        cuts = np.round(np.cumsum(counts) / counts.sum() * len(pool)).astype(int)[:-1]
        for mine, piece in zip(own, np.split(pool, cuts), strict=True):
            mine.append(piece)
    out = [np.sort(np.concatenate(mine)) if mine else rows[:0] for mine in own]
    if empty := [number for number, mine in enumerate(out) if not len(mine)]:
        raise UserError(
            f"data.test = {options.test!r}: its {len(rows)} samples are too few for {len(parts)} clients, client {empty[0]} gets none: "
            "choose fewer clients, or leave data.test ''"
        )
    return out

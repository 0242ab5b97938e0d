"""What clients are scored on, and choose models by, if the data have parts for that:
splits of their own, or a column (``data.part``).

Natural clients have their own samples of such a part. If none of them has any, since
the part is about other people, every client has all of it: how well its model serves
people nobody trained on. Dealt clients get samples of each class in proportion to those
that they train on. All other samples are for training.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedapps.algorithms.common.seeds import generator
from fedapps.data.options import DataOptions
from fedapps.data.source import TEST, VALIDATION, Indices, Samples
from fedapps.errors import UserError


@dataclass(frozen=True)
class Part:
    """A part of the data: what its samples are for, the setting that names it, in
    words, and whose samples they are (N,), bool.
    """

    use: str
    setting: str
    of: npt.NDArray[np.bool_] | None


def part_of(samples: Samples, options: DataOptions, number: int) -> Part:
    """Return the part TEST, that clients are scored on, or VALIDATION, that models are
    chosen by.
    """
    name, key, split, use = {
        TEST: ("test", "test", options.test, "is scored on"),
        VALIDATION: ("validation", "validation-split", options.validation_split, "chooses by"),
    }[number]
    setting = f"data.part = {options.part!r}, {name}" if options.part else f"data.{key} = {split!r}"
    return Part(use, setting, samples.part(number))


def dealt_part(
    samples: Samples, parts: list[Indices], part: Part, seed: int
) -> list[Indices] | None:
    """Return the rows of a part that each client has, given those that it trains on;
    None if there is no such part.

    Raises ``UserError`` if some clients have samples to be scored on and others have
    none; with some to choose by that may be.
    """
    if part.of is None:
        return None
    scored = part.use == "is scored on"
    rows = np.flatnonzero(part.of)
    if samples.clients is None:
        return _in_proportion(
            samples.labels,
            parts,
            rows,
            part,
            generator(seed, f"held-{'out' if scored else 'back'} partition"),
        )
    client, names = samples.clients.codes, samples.clients.names
    owner = client[rows]
    own = [rows[owner == client[mine[0]]] for mine in parts]
    without = [names[client[mine[0]]] for mine, has in zip(parts, own, strict=True) if not len(has)]
    if len(without) == len(parts):
        return [rows] * len(parts)
    if without and scored:
        shown = ", ".join(without[:5]) + (", ..." if len(without) > 5 else "")
        name = part.setting.partition(" ")[0]
        raise UserError(
            f"{part.setting}: {len(without)} of the {len(parts)} clients have no sample in it "
            f"({shown}), the others "
            f"have: mend the data, or leave {name} '' to score each client on a part of its own"
        )
    return own


def remark(samples: Samples, parts: list[Indices], own: list[Indices], part: Part) -> str:
    """Return one line that says what the clients have of a part."""
    assert part.of is not None
    total = int(part.of.sum())
    if samples.clients is None:
        return (
            f"{part.setting}: its {total} samples are dealt to the {len(parts)} clients in "
            "proportion to their classes"
        )
    client = samples.clients.codes
    strangers = [
        client[has[0]] != client[mine[0]] for mine, has in zip(parts, own, strict=True) if len(has)
    ]
    if any(strangers):
        people = len(np.unique(client[part.of]))
        return (
            f"{part.setting}: none of the {len(parts)} clients is in it, so each {part.use} all "
            f"{total} samples of its "
            f"{people} others, whom nobody trains on"
        )
    used, without = sum(map(len, own)), sum(not len(has) for has in own)
    rest = f"; {total - used} samples of others are left out" if used < total else ""
    none = f"; {without} of them have none and choose by what they train on" if without else ""
    return (
        f"{part.setting}: each of the {len(parts)} clients {part.use} its own samples there, "
        f"{used} in all{rest}{none}"
    )


def _in_proportion(
    labels: npt.NDArray[np.int64],
    parts: list[Indices],
    rows: Indices,
    part: Part,
    rng: np.random.Generator,
) -> list[Indices]:
    own: list[list[Indices]] = [[] for _ in parts]
    for label in np.unique(labels[rows]):
        pool = rng.permutation(rows[labels[rows] == label])
        counts = np.array([np.count_nonzero(labels[mine] == label) for mine in parts])
        if not counts.sum():
            continue  # a class that nobody trains on
        cuts = np.round(np.cumsum(counts) / counts.sum() * len(pool)).astype(int)[:-1]
        for mine, piece in zip(own, np.split(pool, cuts), strict=True):
            mine.append(piece)
    out = [np.sort(np.concatenate(mine)) if mine else rows[:0] for mine in own]
    if empty := [number for number, mine in enumerate(out) if not len(mine)]:
        raise UserError(
            f"{part.setting}: its {len(rows)} samples are too few for {len(parts)} clients, client "
            f"{empty[0]} gets none: "
            f"choose fewer clients, or leave {part.setting.partition(' ')[0]} ''"
        )
    return out

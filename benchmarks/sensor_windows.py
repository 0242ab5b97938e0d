"""A generated data set with the shape of UCI HAR: write it as a folder, or measure the
time and memory of reading it.

    python benchmarks/sensor_windows.py --write DIR
        # DIR/people: 30 people; DIR/official: 21 to train on, 9 others to test
    python benchmarks/sensor_windows.py --read
        # seconds and peak memory of 10,299 windows, by how they are stored

Windows of 128 steps of nine sensors, six activities numbered from 1. Each person has
its own offset and gain on every sensor, its own tempo and mixture of activities, and
between half and one and a half times the mean number of windows.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fedapps.algorithms.common.seeds import generator
from fedapps.data.local_files import arrow_array

SENSORS, STEPS, ACTIVITIES, HERTZ = 9, 128, 6, 50
TRAINED = [person for person in range(1, 31) if person % 10 not in (2, 4, 9)]
Arrays = dict[str, NDArray[Any]]


def windows(people: Iterable[int], total: int, split: str = "train", steps: int = STEPS) -> Arrays:
    """Return ``window`` (total, 9, steps), ``activity`` in 1..6 and ``subject``,
    shuffled; the same people in every split.
    """
    common = generator(0, "activities")
    tempo, size = (
        common.uniform(0.5, 4, (ACTIVITIES, SENSORS)),
        common.uniform(0.1, 1, (ACTIVITIES, SENSORS)),
    )
    level, people = common.normal(0, 0.5, (ACTIVITIES, SENSORS)), list(people)
    share = np.array([generator(0, "share", person).uniform(0.5, 1.5) for person in people])
    ends = np.round(np.cumsum(share) / share.sum() * total).astype(int)
    parts = []
    for person, count in zip(people, np.diff(ends, prepend=0), strict=True):
        own = generator(0, "person", person)
        offset, gain, pace = (
            own.normal(0, 0.4, SENSORS),
            own.uniform(0.7, 1.3, SENSORS),
            own.uniform(0.8, 1.25),
        )
        mixture, draw = (
            own.dirichlet(np.full(ACTIVITIES, 8.0)),
            generator(0, f"windows of {split}", person),
        )
        activity = draw.choice(ACTIVITIES, count, p=mixture)
        time_ = np.arange(steps) / HERTZ
        phase = draw.uniform(0, 2 * np.pi, (count, SENSORS, 1))
        waves = np.sin(2 * np.pi * pace * tempo[activity][:, :, None] * time_ + phase)
        x = (level[activity] + offset)[:, :, None] + (gain * size[activity])[:, :, None] * waves
        x += draw.normal(0, 0.5, x.shape)
        parts.append((x.astype(np.float32), activity + 1, np.full(count, person)))
    x, activity, subject = (np.concatenate(part) for part in zip(*parts, strict=True))
    order = generator(0, f"order of {split}").permutation(total)
    return {"window": x[order], "activity": activity[order], "subject": subject[order]}


def write(folder: Path, arrays: Arrays, split: str = "train") -> None:
    """Write a split as parquet with lists of fixed size."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        pa.table({name: arrow_array(array) for name, array in arrays.items()}),
        folder / f"{split}.parquet",
    )


def _stored(folder: Path, kind: str) -> dict[str, str]:
    """Write 10,299 windows in one of the ways to store them; return the settings that
    read them.
    """
    arrays = windows(range(1, 31), 10_299)
    x, folder = arrays["window"], folder / kind.replace(" ", "-")
    folder.mkdir()
    if kind == "npz":
        np.savez(folder / "train.npz", **arrays)
    elif kind == "nested lists of any size":
        lists = arrow_array(x).cast(pa.list_(pa.list_(pa.float32())))
        pq.write_table(pa.table({**arrays, "window": lists}), folder / "train.parquet")
    elif kind == "561 columns of numbers":
        flat = x.reshape(len(x), -1)
        numbers = {f"x{k}": np.ascontiguousarray(flat[:, k]) for k in range(561)}
        pq.write_table(
            pa.table(numbers | {name: arrays[name] for name in ("activity", "subject")}),
            folder / "train.parquet",
        )
        return {"source": str(folder), "features": "x*"}
    else:
        write(folder, {**arrays, "window": x.reshape(len(x), -1) if "flat" in kind else x})
        return {"source": str(folder), "shape": "9,128" if "flat" in kind else ""}
    return {"source": str(folder)}


KINDS = (
    "nested lists of fixed size",
    "flat list of fixed size",
    "nested lists of any size",
    "npz",
    "561 columns of numbers",
)


def measure(options: dict[str, str]) -> dict[str, float]:
    """Read the set in this process; return seconds, and megabytes above what the
    imports take.
    """
    import datasets  # noqa: F401

    from fedapps.data.options import DataOptions
    from fedapps.data.partition import load_samples

    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun, cpu = time.perf_counter(), time.process_time()
    images = load_samples(
        DataOptions(**options, label="activity", partition="natural", natural_id="subject")
    )  # type: ignore[arg-type]
    assert images.x.shape in ((10_299, SENSORS, 1, STEPS), (10_299, 1, 1, 561))
    spent = {"seconds": time.perf_counter() - begun, "cpu": time.process_time() - cpu}
    return spent | {"megabytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) / 1024}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description="A set shaped like UCI HAR: write it, or measure reading it."
    )
    parser.add_argument(
        "--write", type=Path, metavar="DIR", help="write DIR/people and DIR/official"
    )
    parser.add_argument("--read", action="store_true", help="measure reading")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(json.loads(arguments.measure))))
    if arguments.write:
        write(arguments.write / "people", windows(range(1, 31), 10_299))
        write(arguments.write / "official", windows(TRAINED, 7352))
        others = [person for person in range(1, 31) if person not in TRAINED]
        write(arguments.write / "official", windows(others, 2947, "test"), "test")
    if arguments.read:
        with tempfile.TemporaryDirectory() as name:
            print(
                f"{'stored as':28} {'first read: s':>14} {'CPU s':>6} {'MB':>5} {'again: s':>9} "
                f"{'CPU s':>6} {'MB':>5}"
            )
            own = {"FEDAPPS_CACHE": f"{name}/cache", "HF_DATASETS_CACHE": f"{name}/hub"}
            for kind in KINDS:
                options, row = _stored(Path(name), kind), []
                for _ in range(2):  # the second time from the cache
                    command = [sys.executable, __file__, "--measure", json.dumps(options)]
                    out = subprocess.run(
                        command, env=os.environ | own, check=True, capture_output=True, text=True
                    ).stdout
                    row.append(json.loads(out))
                first, again = (f"{r['cpu']:6.2f} {r['megabytes']:5.0f}" for r in row)
                print(
                    f"{kind:28} {row[0]['seconds']:14.2f} {first} {row[1]['seconds']:9.2f} {again}"
                )


if __name__ == "__main__":
    main()

"""Breaks central lines one at a time and sees whether tests fail: ``python -m
tools.mutations [--jobs 2] [WORD ...]``; the exit status is 1 if a mutation survives.

``mutations.toml`` has a table for each. ``file``: its path, or the end of it; ``line``:
text that it holds exactly once; ``broken``: what replaces this; ``breaks``: what is
wrong then; ``tests``: those that must fail, as pytest names them. The working tree is
not touched: each job has a copy. Unbroken, all tests must pass there.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Seconds after which tests that hang count as failed.
MOST_SECONDS = 300
VERDICTS = {0: "SURVIVED", 1: "caught"}  # by pytest's exit status


@dataclass(frozen=True)
class Mutation:
    """A table of the file; ``file`` and ``tests`` with their whole paths."""

    file: str
    line: str
    broken: str
    breaks: str
    tests: Sequence[str]

    def applied(self, text: str) -> str:
        """Return the text of the file, broken. Raises ``ValueError`` unless it holds
        the line once.
        """
        if (count := text.count(self.line)) != 1:
            raise ValueError(f"{self.file} holds {self.line!r} {count} times: must be once")
        return text.replace(self.line, self.broken)


def read(path: Path, names: Sequence[str]) -> list[Mutation]:
    """Return the mutations in a TOML file of a repository with files of these names.
    Raises ``ValueError`` if the end of a path is not that of one file.
    """

    def whole(end: str) -> str:
        path, *test = end.split("::")
        found = [name for name in names if f"/{name}".endswith(f"/{path}")]
        if len(found) != 1:
            raise ValueError(f"{path!r} is the end of {len(found)} paths: must be of one")
        return "::".join([*found, *test])

    tables = tomllib.loads(path.read_text(encoding="utf-8"))["mutation"]
    return [
        Mutation(**{**t, "file": whole(t["file"]), "tests": [*map(whole, t["tests"])]})
        for t in tables
    ]


def tracked(root: Path) -> list[str]:
    """Return the files that git tracks or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    return [name for name in listed.stdout.split("\0") if name and (root / name).is_file()]


def run(root: Path, tests: Iterable[str], seconds: float | None = None) -> tuple[int, str]:
    """Run tests in a copy and return pytest's exit status and its last line. Tests that
    take more than ``seconds`` are ended.
    """
    # before the installed package, also for the processes that tests start
    env = os.environ | {"PYTHONPATH": str(root)}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-xq", "-n0", "-p", "no:cacheprovider", *tests],
            cwd=root,
            env=env,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return 1, ""
    return done.returncode, (done.stdout + done.stderr).strip().splitlines()[-1]


def verdict(mutation: Mutation, root: Path) -> str:
    """Break a line in a copy, run the tests and mend the line."""
    path = root / mutation.file
    text = path.read_text(encoding="utf-8")
    path.write_text(mutation.applied(text), encoding="utf-8")
    status, last = run(root, mutation.tests, MOST_SECONDS)
    path.write_text(text, encoding="utf-8")
    # Python may take the old byte code for the new file's: it compares whole seconds
    Path(cache_from_source(str(path))).unlink(missing_ok=True)
    return VERDICTS.get(status) or f"NO TEST RAN ({last})"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(description="break central lines; do tests fail?")
    parser.add_argument("words", nargs="*", help="only mutations with one of these words")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    given = parser.parse_args(argv)
    names = tracked(ROOT)
    chosen = [
        mutation
        for mutation in read(Path(__file__).with_suffix(".toml"), names)
        if not given.words or any(word in str(mutation) for word in given.words)
    ] or parser.error("no mutation has one of these words")
    survived = 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.jobs) as pool:
        roots = [Path(folder, str(job)) for job in range(given.jobs)]
        for root in roots:
            for name in names:
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, root / name)
        if (unbroken := run(roots[0], sorted({t for one in chosen for t in one.tests})))[0]:
            parser.exit(2, f"nothing is broken yet, but the tests do not pass: {unbroken[1]}\n")

        def judged(mutation: Mutation) -> tuple[str, float]:
            start, root = time.monotonic(), roots.pop()
            found = verdict(mutation, root)
            roots.append(root)
            return found, time.monotonic() - start

        for mutation, (found, seconds) in zip(chosen, pool.map(judged, chosen), strict=True):
            print(f"{found:8} {seconds:4.0f} s  {mutation.file}: {mutation.breaks}", flush=True)
            survived += found != "caught"
    print(f"{len(chosen)} mutations, {len(chosen) - survived} caught, {survived} survived")
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main())

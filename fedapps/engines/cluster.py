"""A Ray cluster that exists already (`--ray-address`): joins it, and asks each of its
machines what it has and sees.

What a run needs on every machine: this package with its dependencies, and the results
folder and the data under the same path, that is, on a file system that the machines
share. Nothing is shipped: an environment of some gigabytes for every run would take
longer than most runs. A machine that lacks something is named before anything starts.
"""

import logging
import os
import platform
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedapps.engines.processes import threads
from fedapps.errors import UserError

#: Packages whose versions decide on numbers, or on whether the parts of a run
#: understand each other.
PACKAGES = ("flwr", "ray", "torch", "numpy")
#: Seconds that a machine may take to answer.
PATIENCE = 120.0


@dataclass(frozen=True)
class Cluster:
    """What a cluster has, all machines together."""

    machines: int
    cpus: int
    gpus: int


def address_of(given: str | None) -> str:
    """Return the address of the cluster to join: ``given``, else `$RAY_ADDRESS`; "" for
    none.
    """
    found = given or os.environ.get("RAY_ADDRESS", "")
    return "" if found == "local" else found


@contextmanager
def joined(address: str) -> Iterator[Any]:
    """Join the cluster within the context; yields the module ``ray``. Raises
    ``UserError`` if it cannot be reached.
    """
    host, _, port = address.rpartition(":")
    if host and port.isdigit():  # Ray itself would try for minutes
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        except OSError as error:
            raise UserError(
                f"--ray-address {address}: nothing answers there ({error.strerror or error}): `ray "
                "status` on the head of the cluster"
            ) from None
    import ray

    path = os.pathsep.join(sys.path)  # workers find this package where this process does
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"env_vars": {"PYTHONPATH": path, **threads(1)}},
        )
    except Exception as error:  # Ray raises whatever its parts do
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"--ray-address {address}: no Ray cluster answers there ({reason}): `ray status` on "
            "the head"
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def checked_cluster(address: str, paths: Sequence[Path]) -> Cluster:
    """Return what the cluster has. Raises ``UserError`` naming the first machine that
    lacks a path or a package of this version.
    """
    mine = versions()
    with joined(address) as ray:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        nodes = [node for node in ray.nodes() if node["Alive"]]
        look = ray.remote(num_cpus=0, max_retries=0)(_look)
        asked = [
            look.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            ).remote(list(map(str, paths)))
            for node in nodes
        ]
        for node, reference in zip(nodes, asked, strict=True):
            name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
            try:
                theirs, lacking = ray.get(reference, timeout=PATIENCE)
            except Exception as error:
                reason = " ".join(str(error).split())[-200:]
                raise UserError(
                    f"{name} of the cluster cannot start this package: install it there, at the "
                    f"same path ({reason})"
                ) from None
            if problem := lacks(name, mine, theirs, lacking):
                raise UserError(problem)
        has = ray.cluster_resources()
    return Cluster(len(nodes), int(has.get("CPU", 0)), int(has.get("GPU", 0)))


def lacks(
    name: str, mine: Mapping[str, str], theirs: Mapping[str, str], lacking: Sequence[str]
) -> str:
    """Return what a machine lacks, as a sentence that says how to mend it, or ""."""
    for package, own in mine.items():
        if theirs.get(package) != own:
            return (
                f"{name} of the cluster has {package} {theirs.get(package)}, this machine "
                f"{own}: install the same versions"
            )
    if lacking:
        return (
            f"{name} of the cluster does not see {lacking[0]}: choose a folder that all of its "
            "machines share, under the same path"
        )
    return ""


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide on numbers."""
    found = {"python": platform.python_version().rpartition(".")[0]}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _look(paths: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return a machine's versions and those of the paths that it does not see."""
    return versions(), [path for path in paths if not Path(path).exists()]

"""An existing Ray cluster (`--ray-address`): joins it and checks each of its machines.

A run needs this package with its dependencies on every machine. It also needs the
results folder and the data under the same path, on a file system that the machines
share. Nothing is shipped: sending an environment of some gigabytes would take longer
than most runs. A machine that lacks something is reported before anything starts.
"""

import logging
import os
import platform
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedapps.engines.capacity import Machine
from fedapps.errors import UserError

#: Packages that must have the same version everywhere: they affect the numbers, or the
#: protocol between the parts of a run.
PACKAGES = ("flwr", "ray", "torch", "numpy")
#: Seconds to wait for a machine's answer.
PATIENCE = 120.0


def address_of(given: str | None) -> str:
    """Return the address of the cluster to join: ``given``, else `$RAY_ADDRESS`; "" for
    none.
    """
    address = given or os.environ.get("RAY_ADDRESS", "")
    return "" if address == "local" else address


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
                f"--ray-address {address}: nothing answers there ({error.strerror or error}): "
                "check the address, and `ray status` on the head node"
            ) from None
    import ray

    path = os.pathsep.join(sys.path)  # workers find this package where this process does
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"env_vars": {"PYTHONPATH": path}},
        )
    except Exception as error:  # Ray raises errors of many types
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"--ray-address {address}: no Ray cluster answers there ({reason}): check the "
            "address, and `ray status` on the head node"
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def checked_cluster(address: str, paths: Sequence[Path]) -> list[Machine]:
    """Return the machines of the cluster. Raises ``UserError`` for the first machine
    that lacks a path or has another version of a package.
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
    has = [node["Resources"] for node in nodes]
    return [Machine(int(one.get("CPU", 0)), int(one.get("GPU", 0))) for one in has]


def lacks(
    name: str, mine: Mapping[str, str], theirs: Mapping[str, str], lacking: Sequence[str]
) -> str:
    """Return an error message if a machine lacks something, else ""."""
    for package, own in mine.items():
        if theirs.get(package) != own:
            return (
                f"{name} of the cluster has {package} {theirs.get(package)}, this machine has "
                f"{own}: install the same version"
            )
    if lacking:
        return (
            f"{name} of the cluster has no {lacking[0]}: choose a folder that all machines share "
            "under the same path"
        )
    return ""


def versions() -> dict[str, str]:
    """Return the versions of Python and of PACKAGES."""
    installed = {"python": platform.python_version().rpartition(".")[0]}
    for name in PACKAGES:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            installed[name] = "not installed"
    return installed


def _look(paths: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return a machine's versions, and the paths that it does not have."""
    return versions(), [path for path in paths if not Path(path).exists()]

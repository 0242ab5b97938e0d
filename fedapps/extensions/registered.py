"""Methods, tasks and nets that installed packages register by entry points, and then
are chosen by name like ours.

    [project.entry-points."fedapps.methods"]
    fedexp = "my_package.methods:METHOD"

Groups: ``fedapps.methods``, ``fedapps.tasks``, ``fedapps.models``. The names are read
from the packages' metadata, once a process and only where a name is none of ours; a
package is imported when what it registers is used.
"""

from dataclasses import dataclass
from functools import lru_cache

from fedapps.extensions.own_code import is_reference

#: The settings whose values packages can add to, and their groups.
GROUPS = {"method": "fedapps.methods", "task": "fedapps.tasks", "model.name": "fedapps.models"}


@dataclass(frozen=True)
class Registered:
    """A name, what it stands for as ``module:name``, and the package that registers
    it.
    """

    name: str
    reference: str
    package: str


@lru_cache
def registered(key: str) -> dict[str, Registered]:
    """Return what packages register for the setting ``key``, by name; of several of one
    name that of the first package.
    """
    from importlib.metadata import entry_points  # late: most commands need none

    found: dict[str, Registered] = {}
    for point in sorted(
        entry_points(group=GROUPS[key]),
        key=lambda point: (point.dist.name if point.dist else "", point.name),
    ):
        package = f"{point.dist.name} {point.dist.version}" if point.dist else "?"
        found.setdefault(
            point.name, Registered(point.name, f"{point.module}:{point.attr}", package)
        )
    return found


def reference_of(key: str, name: object) -> str | None:
    """Return what the value ``name`` of the setting ``key``, none of ours, stands for
    as ``module:name``; ``None``: nothing.
    """
    if not isinstance(name, str) or not name:
        return None
    if is_reference(name):
        return name
    entry = registered(key).get(name)
    return entry.reference if entry else None

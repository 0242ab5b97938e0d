"""Methods, tasks and nets that installed packages register by entry points. They are
chosen by name, like ours.

    [project.entry-points."fedapps.methods"]
    fedexp = "my_package.methods:METHOD"

Groups: ``fedapps.methods``, ``fedapps.tasks``, ``fedapps.models``. The names are read
from the packages' metadata, once per process and only for a name that is not ours. A
package is imported when one of its entries is used.
"""

from functools import lru_cache
from typing import NamedTuple

from fedapps.extensions.own_code import is_reference

#: The settings whose values packages can add to, and their groups.
GROUPS = {"method": "fedapps.methods", "task": "fedapps.tasks", "model.name": "fedapps.models"}


class Registered(NamedTuple):
    """A registered object as ``module:name``, and the package that registers it."""

    reference: str
    package: str


@lru_cache
def registered(key: str) -> dict[str, Registered]:
    """Return the entries that packages register for the setting ``key``, by name. If
    several packages register a name, the first package counts.
    """
    from importlib.metadata import entry_points  # imported late: most commands need none

    entries: dict[str, Registered] = {}
    for point in sorted(
        entry_points(group=GROUPS[key]),
        key=lambda point: (point.dist.name if point.dist else "", point.name),
    ):
        package = f"{point.dist.name} {point.dist.version}" if point.dist else "?"
        entries.setdefault(point.name, Registered(f"{point.module}:{point.attr}", package))
    return entries


def reference_of(key: str, name: object) -> str | None:
    """Return the object that ``name``, a value of the setting ``key``, stands for as
    ``module:name``; ``None`` if it is unknown. Our own names are not looked up.
    """
    if not isinstance(name, str) or not name:
        return None
    if is_reference(name):
        return name
    entry = registered(key).get(name)
    return entry.reference if entry else None

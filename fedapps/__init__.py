"""Applications of the federated-learning methods: settings, tasks, engines, reports and
the command line.

From Python use ``fedapps.run(method="superfed-mm", num_rounds=20)``, ``load``,
``sweep``, ``contest``, ``compare`` and ``partition``. They are imported on first use.
"""

from pathlib import Path
from typing import Any

__version__ = "0.1.0"

# `strategies`, `clients` and `algorithms` are folders of this one in a wheel, and links
# in a checkout. Flower's app file leaves out links: there they are beside this one.
if not (Path(__file__).parent / "strategies").is_dir():
    __path__.append(str(Path(__file__).parents[1]))


def __getattr__(name: str) -> Any:
    if name not in ("Run", "compare", "contest", "load", "partition", "run", "sweep"):
        raise AttributeError(f"module 'fedapps' has no attribute {name!r}")
    from importlib import import_module

    from fedapps.errors import check_system

    check_system()
    return getattr(import_module("fedapps.lab.api"), name)

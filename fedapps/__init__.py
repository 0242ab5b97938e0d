"""Applications of the federated-learning methods: settings, tasks, engines, reports and
the command line.

From Python use ``fedapps.run(method="superfed-mm", num_rounds=20)``, ``load``,
``sweep``, ``contest``, ``compare`` and ``partition``. They are imported on first use.
"""

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in ("Run", "compare", "contest", "load", "partition", "run", "sweep"):
        raise AttributeError(f"module 'fedapps' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("fedapps.lab.api"), name)

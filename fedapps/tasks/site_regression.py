"""Numbers to predict from one site's own table.

Nobody but the site sees its rows, so that the scale of the targets is in the settings
(``regression.center``, ``regression.scale``), the same for all sites, and inputs are
scaled by each client's own training rows.
"""

from typing import Any

import numpy as np

from fedapps.data.table_columns import Floats, targets
from fedapps.errors import UserError
from fedapps.tasks.context import RunContext
from fedapps.tasks.options import SUMS
from fedapps.tasks.regression import TableTargets
from fedapps.tasks.site_data import SiteTable


class SiteRegression(TableTargets, SiteTable):
    """Prediction of columns of one site's rows; ``source`` is "" on the server."""

    def __init__(self, options: Any, context: RunContext, source: str) -> None:
        SiteTable.__init__(self, options, context, source)
        for key, remedy in (
            ("standardise", "choose 'client'"),
            ("center", "give a number"),
            ("scale", "give a number"),
        ):
            if getattr(options, key) == SUMS:
                raise UserError(
                    f"regression.{key} = {SUMS!r}: sites with data of their own send no sums of "
                    f"them: {remedy} (so must "
                    "regression.standardise = 'client', regression.center and regression.scale be, "
                    "the same at all sites)"
                )

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns to predict, from the settings."""
        named = tuple(name for part in self.options.label.split(",") if (name := part.strip()))
        return named or (self.options.usual,)

    @property
    def num_outputs(self) -> int:
        """The number of targets, from the settings."""
        return len(self.labels)

    def read_labels(self) -> Floats:
        """Return the targets (n, targets). Raises ``UserError``."""
        named = [(name, f"{self.source}: label {name!r}") for name in self.labels]
        return np.stack([targets(self.columns[name], what) for name, what in named], 1)

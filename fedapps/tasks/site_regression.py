"""Numbers to predict from one site's own table.

Nobody but the site sees its rows, so that the scale of the targets is in the settings
(``regression.center``, ``regression.scale``), the same for all sites, and inputs are
scaled by each client's own training rows.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapps.data.arrays import targets_of
from fedapps.data.samples import Columns, Samples
from fedapps.errors import UserError
from fedapps.tasks.context import RunContext
from fedapps.tasks.options import SUMS
from fedapps.tasks.regression import Regression
from fedapps.tasks.site_data import SiteRows


class SiteRegression(SiteRows, Regression):
    """Prediction of columns of one site's rows; ``source`` is "" on the server."""

    def __init__(self, options: Any, context: RunContext, source: str) -> None:
        SiteRows.__init__(self, options, context, source)
        for key in ("center", "scale"):
            if getattr(options, key) == SUMS:
                raise UserError(
                    f"regression.{key} = {SUMS!r}: sites with data of their own send no sums of "
                    "them: give a number (regression.center and regression.scale, the same at all "
                    "sites)"
                )

    @property
    def num_outputs(self) -> int:
        """The number of targets, from the settings."""
        return len(self.labels)

    def predicted(self, x: NDArray[np.float32], columns: Columns) -> Samples:
        """Return the samples with the numbers to predict."""
        y = np.concatenate([targets_of(self.frame, self.given, n) for n in self.labels], 1)
        return Samples(x, np.zeros(len(y), np.int64), 1, numbers=columns, targets=y)

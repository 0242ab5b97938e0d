"""Numbers to predict from one site's own table.

Nobody but the site sees its rows, so that the scale of the targets is in the settings
(``regression.center``, ``regression.scale``), the same for all sites, and inputs are
scaled by each client's own training rows.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from clients.base.data import ClientData
from fedapps.errors import UserError
from fedapps.tasks.context import RunContext
from fedapps.tasks.options import SUMS
from fedapps.tasks.site_data import SiteTable
from fedapps.tasks.targets import LINEAR, NAME, Floats, Targets, checked_target

if TYPE_CHECKING:
    pass


class SiteRegression(Targets, SiteTable):
    """Prediction of columns of one site's rows; ``source`` is "" on the server."""

    name = NAME

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
        columns = {name: np.array(self.columns[name], object) for name in self.labels}
        return np.stack(
            [
                checked_target(values, f"{self.source}: label {name!r}")
                for name, values in columns.items()
            ],
            1,
        )

    @property
    def usual_net(self) -> str:
        """The net that ``auto`` stands for."""
        return LINEAR

    def client_data(self, client_id: int | str, num_clients: int) -> ClientData:
        """Return a client's rows as tensors, with targets as the model learns them."""
        return (
            self.target_scale.of_data(self.arrays(client_id, num_clients)).tensors().to(self.device)
        )

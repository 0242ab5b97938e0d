"""Client of FedAvg with projection: gradient steps from the server's point, each
projected onto the domain. Stateless.
"""

from typing import Any

from algorithms.common.averaging import Arrays
from algorithms.frank_wolfe.atoms import Array
from clients.base.options import Config
from clients.families.problems import ConstrainedClient


class ProjectedClient(ConstrainedClient):
    """Client of FedAvg with projection."""

    def step(self, x_bar: Array, config: Config) -> tuple[Arrays, dict[str, Any]]:
        """Return the point after ``local-steps`` projected gradient steps."""
        x, rate = x_bar.copy(), float(config["learning-rate"])
        for k in range(int(config["local-steps"])):
            gradient = self.gradient(x, config, int(config["batch-size"]), k)
            if hasattr(gradient, "add_to"):
                gradient.add_to(x, -rate)
            else:
                x -= rate * gradient
            x = self.domain.project(x).astype(x_bar.dtype, copy=False)
        return self.domain.split(x), {}

"""Client of FedAvg with projection: gradient steps from the server's point, each
projected onto the domain. Stateless.
"""

from typing import Any

from fedapps.algorithms.common.averaging import Arrays
from fedapps.algorithms.contract.sent import ProjectedSent
from fedapps.algorithms.frank_wolfe.domain import Array
from fedapps.clients.base.options import Config
from fedapps.clients.families.problems import ConstrainedClient


class ProjectedClient(ConstrainedClient):
    """Client of FedAvg with projection."""

    reads = (ProjectedSent,)

    def step(self, x_bar: Array, config: Config) -> tuple[Arrays, dict[str, Any]]:
        """Return the point after ``local-steps`` projected gradient steps."""
        x, sent = x_bar.copy(), ProjectedSent.from_config(config)
        for k in range(sent.local_steps):
            gradient = self.gradient(x, config, sent.batch_size, k)
            if hasattr(gradient, "add_to"):
                gradient.add_to(x, -sent.learning_rate)
            else:
                x -= sent.learning_rate * gradient
            x = self.domain.project(x).astype(x_bar.dtype, copy=False)
        return self.domain.split(x), {}

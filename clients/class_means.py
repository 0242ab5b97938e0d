"""Client of class means: replies with sums over its training samples, of the images by
class and of their numbers, divided by the number of samples. It trains nothing.

Source: ``strategies/class_means.py``.
"""

from typing import Any

from fedapps.algorithms.common.modules import class_sums
from fedapps.clients.base.training import Arrays, Config
from fedapps.clients.families.generative import check_images
from fedapps.clients.fedavg import FedAvgClient


class ClassMeansClient(FedAvgClient):
    """Sums its images by class; evaluates the server's classifier."""

    differentiates_surrogate = False
    needs_float32 = "it sends means, and trains no net"

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, dict[str, Any]]:
        """Return the sums (K, C, H, W) and the shares (K,) of its samples, and their
        number.
        """
        data = self.data.train
        check_images(data.x, -1.0)
        return class_sums(data.x, data.y, len(parameters[1])), len(data), {}

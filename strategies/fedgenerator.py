"""FedCGAN and FedCVAE: the clients' generative networks are averaged, and the server
draws synthetic samples from the average.

An auxiliary-classifier GAN, of which generator and discriminator are sent, and a
conditional variational autoencoder; sources in ``clients/fedcgan.py`` and
``clients/fedcvae.py``. Baselines in Hahn, "Algorithms for Collaborative Machine
Learning under Statistical Heterogeneity", dissertation, UNIST 2024, arXiv 2408.00050,
Chapter IV.

Contract: FedAvg's; evaluation as in ``strategies.families.sample_sets``.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Unpack

from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedapps.algorithms.common.options import Options, option
from fedapps.algorithms.common.seeds import generator
from fedapps.algorithms.contract.wire import read
from fedapps.strategies.families.sample_sets import Arrays, Evaluator, Synthetic
from fedapps.strategies.fedavg import FedAvgArguments

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class GeneratorOptions(Options):
    """Options of FedCGAN and FedCVAE."""

    PRINTED = MappingProxyType({"hidden": 64})

    hidden: int = option(16, "channels of the nets' first stage", low=1)


class FedGenerator(Synthetic):
    """FedCGAN and FedCVAE strategy. ``net`` holds the initial weights; ``net.images(y,
    rng)`` draws an image for each label.
    """

    def __init__(
        self,
        net: "nn.Module",
        evaluator: Evaluator,
        num_classes: int,
        samples: int = 100,
        seed: int = 0,
        **kwargs: Unpack[FedAvgArguments],
    ) -> None:
        # imported late: reading the options must not import PyTorch
        from fedapps.algorithms.common.modules import get_arrays

        super().__init__(evaluator, num_classes, samples, seed, **kwargs)
        self.net = net
        self._names = list(net.state_dict())
        self._first = get_arrays(net)

    def first_arrays(self) -> Arrays:
        """Return the initial weights."""
        return dict(zip(self._names, self._first, strict=True))

    def samples(self, arrays: ArrayRecord) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return images drawn from the averaged network, with the same latent codes in
        every round.
        """
        import torch  # imported late, as above

        from fedapps.algorithms.common.modules import set_arrays

        set_arrays(self.net, [read(array) for array in arrays.values()])
        self.net.eval()
        device = next(self.net.parameters()).device
        net: Any = self.net
        with torch.no_grad():
            x = net.images(
                torch.tensor(self.labels, device=device).long(),
                generator(self.seed, "synthetic codes"),
            )
        return x.cpu().numpy(), self.labels

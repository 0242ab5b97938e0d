"""FedCGAN and FedCVAE: the clients' generative nets are averaged, and the server draws the synthetic samples from the average.

Baselines of Hahn 2024 (dissertation), Chapter IV: an auxiliary-classifier GAN, both nets of which travel, and a conditional variational
autoencoder.

Contract: FedAvg's; evaluation as in ``strategies.families.sample_sets``.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord
from numpy.typing import NDArray

from algorithms.common.options import Options, option
from algorithms.common.seeds import generator
from algorithms.common.wire import read
from strategies.families.sample_sets import Arrays, Evaluator, Synthetic

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class GeneratorOptions(Options):
    """Options of FedCGAN and FedCVAE."""

    hidden: int = option(32, "channels of the nets' first stage; the paper has 64", low=1)


class FedGenerator(Synthetic):
    """Server half of both. ``net``: with the weights of the start; ``images(y, rng)`` makes an image for each label."""

    def __init__(
        self, net: "nn.Module", evaluator: Evaluator, num_classes: int, samples: int = 100, seed: int = 0, **kwargs: Any
    ) -> None:
        from algorithms.common.modules import get_arrays  # late: PyTorch, which who reads the options does not need

        super().__init__(evaluator, num_classes, samples, seed, **kwargs)
        self.net = net
        self._names = list(net.state_dict())
        self._first = get_arrays(net)

    def first_arrays(self) -> Arrays:
        """Return the nets' weights at the start."""
        return dict(zip(self._names, self._first, strict=True))

    def samples(self, arrays: ArrayRecord) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return images drawn from the average, with the same codes whatever the round."""
        import torch  # late, as above

        from algorithms.common.modules import set_arrays

        set_arrays(self.net, [read(array) for array in arrays.values()])
        self.net.eval()
        device = next(self.net.parameters()).device
        net: Any = self.net
        with torch.no_grad():
            x = net.images(torch.tensor(self.labels, device=device).long(), generator(self.seed, "synthetic codes"))
        return x.cpu().numpy(), self.labels

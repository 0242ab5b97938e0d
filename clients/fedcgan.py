"""FedCGAN's client: trains generator and discriminator of an auxiliary-classifier GAN
on its samples.

The discriminator's target label for a generated sample is the one the generator was
conditioned on (the dissertation's program draws another). The net has ``latent``,
``generate(z, y)`` and ``discriminate(x) -> (logit of being real (n,), logits of the
classes)``, with images in [-1, 1].

Sources: Odena, Olah, Shlens, "Conditional Image Synthesis with Auxiliary Classifier
GANs", ICML 2017, arXiv 1610.09585. Averaged over clients as in Rasouli, Sun, Rajagopal,
"FedGAN: Federated Generative Adversarial Networks for Distributed Data", 2020, arXiv
2006.07228. A baseline in Hahn, "Algorithms for Collaborative Machine Learning under
Statistical Heterogeneity", dissertation, UNIST 2024, arXiv 2408.00050, Chapter IV.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedapps.clients.base.training import TrainOptions
from fedapps.clients.families.generative import GeneratorClient, adam


class FedCGANClient(GeneratorClient):
    """Trains both networks of the GAN."""

    def steps(self, options: TrainOptions, rate: float) -> Any:
        """Return the step on a mini-batch of real samples in [0, 1]: first of the
        discriminator, then of the generator.
        """
        net: Any = self.net
        of_generator, of_discriminator = (
            adam(net.generator, rate, options),
            adam(net.discriminator, rate, options),
        )

        def step(x: Tensor, y: Tensor) -> Tensor:
            z = 2 * torch.rand(len(y), net.latent, device=y.device) - 1
            fake = net.generate(z, y)
            loss = _loss(net, 2 * x - 1, y, 1.0) + _loss(net, fake.detach(), y, 0.0)
            of_discriminator.zero_grad()
            loss.backward()
            of_discriminator.step()
            made = _loss(net, fake, y, 1.0)
            of_generator.zero_grad()
            made.backward()
            of_generator.step()
            return (loss + made).detach()

        return step


def _loss(net: Any, x: Tensor, y: Tensor, real: float) -> Tensor:
    """Return the discriminator's loss: the cross-entropy of x (n, C, H, W) being real
    (1) or not (0), plus that of its labels y.
    """
    source, logits = net.discriminate(x)
    wanted = torch.full_like(source, real)
    return functional.binary_cross_entropy_with_logits(source, wanted) + functional.cross_entropy(
        logits, y
    )

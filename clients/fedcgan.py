"""FedCGAN's client: trains generator and discriminator of an auxiliary-classifier GAN on its samples.

Source: Odena et al. 2017 (AC-GAN), averaged over clients as in Rasouli et al. 2020 (FedGAN); baseline of Hahn 2024, Chapter IV. The
label that the discriminator is to find in a generated sample is the one that the generator was given (the chapter's program draws
another).
The net has ``latent``, ``generate(z, y)`` and ``judge(x) -> (logit of being real (n,), logits of the classes)``, images in [-1, 1].
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from clients.base.training import TrainOptions
from clients.families.generative import GeneratorClient, adam


class FedCGANClient(GeneratorClient):
    """A client with both nets."""

    def steps(self, options: TrainOptions, rate: float) -> Any:
        """Return a step of the discriminator, then one of the generator, for a mini-batch of real samples in [0, 1]."""
        net: Any = self.net
        makes, judges = adam(net.generator, rate, options), adam(net.discriminator, rate, options)

        def step(x: Tensor, y: Tensor) -> Tensor:
            z = 2 * torch.rand(len(y), net.latent, device=y.device) - 1
            fake = net.generate(z, y)
            loss = _judged(net, 2 * x - 1, y, 1.0) + _judged(net, fake.detach(), y, 0.0)
            judges.zero_grad()
            loss.backward()
            judges.step()
            made = _judged(net, fake, y, 1.0)
            makes.zero_grad()
            made.backward()
            makes.step()
            return (loss + made).detach()

        return step


def _judged(net: Any, x: Tensor, y: Tensor, real: float) -> Tensor:
    """Return the cross-entropies of calling x (n, C, H, W) real (1) or not (0), and of its labels y."""
    source, logits = net.judge(x)
    wanted = torch.full_like(source, real)
    return functional.binary_cross_entropy_with_logits(source, wanted) + functional.cross_entropy(logits, y)

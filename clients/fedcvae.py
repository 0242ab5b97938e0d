"""FedCVAE's client: trains a conditional variational autoencoder on its samples.

Source: Sohn et al. 2015 (CVAE), averaged over clients; baseline of Hahn 2024, Chapter IV. The squared error is summed over pixels, as
the Gaussian likelihood has it: averaged, as in the chapter's program, it is outweighed by the divergence, and the code means nothing.
The net has ``encode(x) -> (mean, sigma)`` and ``decode(z, y)``, images in [0, 1].
"""

from typing import Any

import torch
from torch import Tensor

from clients.base.training import TrainOptions
from clients.families.generative import GeneratorClient, adam


class FedCVAEClient(GeneratorClient):
    """A client with encoder and decoder."""

    def steps(self, options: TrainOptions, rate: float) -> Any:
        """Return a step on the negative evidence bound of a mini-batch of samples in [0, 1]."""
        net: Any = self.net
        optimiser = adam(net, rate, options)

        def step(x: Tensor, y: Tensor) -> Tensor:
            mean, sigma = net.encode(x)
            made = net.decode(mean + sigma * torch.randn_like(sigma), y)
            loss: Tensor = ((made - x) ** 2).flatten(1).sum(1).mean() + divergence(mean, sigma).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            return loss.detach()

        return step


def divergence(mean: Tensor, sigma: Tensor) -> Tensor:
    """Return the Kullback-Leibler divergence (n,) of N(mean, sigma^2) from N(0, I), both (n, latent)."""
    return (mean**2 + sigma**2 - 1 - 2 * sigma.log()).sum(1) / 2

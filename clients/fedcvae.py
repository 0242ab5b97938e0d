"""FedCVAE's client: trains a conditional variational autoencoder on its samples.

The squared error is summed over pixels, as in the Gaussian likelihood: averaged, as in
the dissertation's program, it is outweighed by the KL divergence, and the latent code
carries no information. The net has ``encode(x) -> (mean, sigma)`` and ``decode(z, y)``,
with images in [0, 1].

Sources: Sohn, Lee, Yan, "Learning Structured Output Representation using Deep
Conditional Generative Models", NeurIPS 2015. Averaged over clients as a baseline in
Hahn, "Algorithms for Collaborative Machine Learning under Statistical Heterogeneity",
dissertation, UNIST 2024, arXiv 2408.00050, Chapter IV.
"""

from typing import Any

import torch
from torch import Tensor

from fedapps.clients.base.training import TrainOptions
from fedapps.clients.families.generative import GeneratorClient, adam


class FedCVAEClient(GeneratorClient):
    """Trains the encoder and the decoder."""

    def steps(self, options: TrainOptions, rate: float) -> Any:
        """Return the step on the negative evidence lower bound of a mini-batch of
        samples in [0, 1].
        """
        net: Any = self.net
        optimiser = adam(net, rate, options)

        def step(x: Tensor, y: Tensor) -> Tensor:
            mean, sigma = net.encode(x)
            made = net.decode(mean + sigma * torch.randn_like(sigma), y)
            loss: Tensor = ((made - x) ** 2).flatten(1).sum(1).mean() + divergence(
                mean, sigma
            ).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            return loss.detach()

        return step


def divergence(mean: Tensor, sigma: Tensor) -> Tensor:
    """Return the Kullback-Leibler divergence (n,) of N(mean, sigma^2), both (n,
    latent), from N(0, I).
    """
    return (mean**2 + sigma**2 - 1 - 2 * sigma.log()).sum(1) / 2

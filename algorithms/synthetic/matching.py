"""Distribution matching: synthetic samples whose mean features and outputs are those of
real samples of their class.

Source: Xiong, Wang, Cheng, Yu, Hsieh, "FedDM: Iterative Distribution Matching for
Communication-Efficient Federated Learning", CVPR 2023, arXiv 2207.09653, equations (5)
and (6); one-shot and central: Zhao, Bilen, "Dataset Condensation with Distribution
Matching", WACV 2023, arXiv 2110.04181.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call


def matching_loss(
    net: nn.Module, weights: Mapping[str, Tensor], real: list[Tensor], made: list[Tensor]
) -> Tensor:
    """Return the squared distance between the mean features, and between the mean
    outputs, of real and synthetic samples.

    It is summed over the classes: ``real[c]`` (n_c, ...) and ``made[c]`` (m_c, ...) are
    samples of one class each. ``net`` is evaluated at ``weights``; its features are the
    outputs of its ``body``. Gradients flow to ``made``.
    """
    with torch.no_grad():
        wanted = _means(net, weights, real)
    return ((_means(net, weights, made) - wanted) ** 2).sum()


def nearby(net: nn.Module, radius: float) -> dict[str, Tensor]:
    """Return the net's parameters moved by a random direction of length ``radius``,
    drawn from torch's generator.
    """
    parameters = {name: parameter.detach() for name, parameter in net.named_parameters()}
    direction = {name: torch.randn_like(tensor) for name, tensor in parameters.items()}
    length = torch.sqrt(torch.stack([(tensor**2).sum() for tensor in direction.values()]).sum())
    return {name: tensor + radius / length * direction[name] for name, tensor in parameters.items()}


class _Both(nn.Module):
    """Returns features and outputs side by side, flat; only the outputs if the net has
    no ``body`` and ``classifier``.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        body, classifier = getattr(self.net, "body", None), getattr(self.net, "classifier", None)
        if body is None or classifier is None:
            outputs: Tensor = self.net(x)
            return outputs
        features = body(x)
        return torch.cat([features.flatten(1), classifier(features)], 1)


def _means(net: nn.Module, weights: Mapping[str, Tensor], samples: list[Tensor]) -> Tensor:
    """Return the mean of features and outputs (classes, d) of each class, in one
    pass.
    """
    out = functional_call(
        _Both(net),
        {f"net.{name}": tensor for name, tensor in weights.items()},
        (torch.cat(samples),),
    )
    return torch.stack([part.mean(0) for part in out.split([len(part) for part in samples])])

"""Base class of the classification nets, a body followed by a classifier, and their
initialisation.
"""

import torch
from torch import nn

Shape = tuple[int, int, int]


class Classifier(nn.Module):
    """Maps images (n, C, H, W), float, to logits (n, num_classes): ``body``, then
    ``classifier``.
    """

    # The head consists of the parameters whose names start with one of these prefixes.
    head: tuple[str, ...] = ("classifier.",)
    # Whether the net initialises its own weights, pretrained or by its own rule. These
    # are kept.
    initialised = False

    def __init__(self, body: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.classifier = classifier

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits (n, num_classes) of images ``x`` (n, C, H, W)."""
        logits: torch.Tensor = self.classifier(self.body(x))
        return logits


def features_of(body: nn.Module, shape: Shape) -> int:
    """Return the number of features that ``body`` extracts from one image."""
    with torch.no_grad():
        return int(body(torch.zeros(1, *shape)).shape[1])


def draw_weights(model: nn.Module, seed: int) -> None:
    """Initialise all weights at random from ``seed`` (Xavier normal; biases 0).
    Normalisation layers start as the identity.
    """
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase | nn.GroupNorm | nn.LayerNorm):
            module.reset_parameters()
            continue
        for parameter in module.parameters(recurse=False):
            if parameter.ndim > 1:
                nn.init.xavier_normal_(parameter, generator=generator)
            else:
                nn.init.zeros_(parameter)

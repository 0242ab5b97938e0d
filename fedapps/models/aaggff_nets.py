"""Networks of the AAggFF experiments, for images and sound.

Inputs are pixels in [0, 1] and amplitudes in [-1, 1]; a net that needs another scale
converts them itself. Deep nets keep their library's initial weights (``initialised``):
with a single rule for all layers they would not train.

Sources: Hahn, "Algorithms for Collaborative Machine Learning under Statistical
Heterogeneity", dissertation, UNIST 2024, arXiv 2408.00050, Chapter III, section 6.1.
CelebA net: Caldas, Duddu, Wu, Li, Konečný, McMahan, Smith, Talwalkar, "LEAF: A
Benchmark for Federated Settings", 2018, arXiv 1812.01097. EfficientNet: Tan, Le,
"EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks", ICML 2019,
arXiv 1905.11946. MobileViT: Mehta, Rastegari, "MobileViT: Light-weight,
General-purpose, and Mobile-friendly Vision Transformer", ICLR 2022, arXiv 2110.02178.
M5: Dai, Dai, Qu, Li, Das, "Very Deep Convolutional Neural Networks for Raw Waveforms",
ICASSP 2017, arXiv 1610.00087.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedapps.errors import UserError
from fedapps.models.base import Classifier, Shape


class CelebACNN(Classifier):
    """LEAF's net for CelebA: four convolutions with group normalisation. Head: the
    output layer after 5 x 5 pooling.

    For two classes there is one output z: the logits are 0 and z, whose cross-entropy
    is the binary one of z; 29,569 parameters.
    """

    def __init__(self, shape: Shape, num_classes: int) -> None:
        layers: list[nn.Module] = []
        channels = shape[0]
        for groups in (32, 16, 8, 4):
            layers += [nn.Conv2d(channels, 32, 3, padding=1, bias=False), nn.GroupNorm(groups, 32)]
            layers += [nn.MaxPool2d(2, padding=1), nn.ReLU()]
            channels = 32
        self.binary = num_classes == 2
        output = nn.Linear(5 * 5 * 32, 1 if self.binary else num_classes)
        super().__init__(
            nn.Sequential(*layers), nn.Sequential(nn.AdaptiveAvgPool2d(5), nn.Flatten(), output)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, num_classes) of images ``x``, scaled to [-1, 1] first."""
        logits = super().forward(2 * x - 1)
        return functional.pad(logits, (1, 0)) if self.binary else logits


class EfficientNetB0(Classifier):
    """EfficientNet-B0's convolutions; head: 7 x 7 pooling, dropout 0.1 and one dense
    layer. 4,509,316 parameters for 8 classes.

    Greyscale images are repeated to three channels, and inputs are normalised with
    ImageNet's mean and standard deviation, as the pretrained weights expect.
    """

    initialised = True
    mean: Tensor
    std: Tensor

    def __init__(
        self, shape: Shape, num_classes: int, body: Mapping[str, Tensor] | None = None
    ) -> None:
        from torchvision.models import efficientnet_b0  # imported only if this net is used

        features = efficientnet_b0(weights=None).features
        output = nn.Linear(1280 * 7 * 7, num_classes)
        super().__init__(
            features, nn.Sequential(nn.AdaptiveAvgPool2d(7), nn.Flatten(), nn.Dropout(0.1), output)
        )
        if body is not None:
            features.load_state_dict(body)
        for name, values in (("mean", (0.485, 0.456, 0.406)), ("std", (0.229, 0.224, 0.225))):
            self.register_buffer(name, torch.tensor(values).view(3, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, num_classes) of images ``x``."""
        return super().forward((x.expand(-1, 3, -1, -1) - self.mean) / self.std)


def imagenet_features() -> dict[str, Tensor]:
    """Return the published weights of EfficientNet-B0's convolutions, from torch's
    cache or the network.

    Raises ``UserError`` if they cannot be loaded.
    """
    from torchvision.models import EfficientNet_B0_Weights

    source = EfficientNet_B0_Weights.IMAGENET1K_V1
    try:
        state = source.get_state_dict(progress=False, check_hash=True, weights_only=True)
    # network errors, disk errors and corrupt files raise exceptions of many types
    except Exception as error:
        raise UserError(
            f"model.pretrained = true: cannot load the weights ({error}): connect to a network, "
            f"copy {source.url} to {torch.hub.get_dir()}/checkpoints, or set it to false"
        ) from error
    return {
        name.removeprefix("features."): value
        for name, value in state.items()
        if name.startswith("features.")
    }


class MobileViTXXS(Classifier):
    """MobileViT-XXS from ``timm``. Head: the output layer. 1,015,224 parameters for 200
    classes.
    """

    initialised = True

    def __init__(self, shape: Shape, num_classes: int) -> None:
        try:
            import timm
        except ImportError as error:
            raise UserError(
                "model.name = 'mobilevit-xxs' needs timm: pip install 'fedapps[vision]'"
            ) from error
        body: Any = timm.create_model(
            "mobilevit_xxs", pretrained=False, in_chans=shape[0], num_classes=0
        )
        super().__init__(body, nn.Linear(body.num_features, num_classes))


class M5(Classifier):
    """M5 for waveforms (n, 1, 1, L): four convolutions over time, averaged over time.
    Head: the output layer.

    150,819 parameters for 35 classes.
    """

    def __init__(self, shape: Shape, num_classes: int) -> None:
        if shape[:2] != (1, 1):
            raise UserError(
                "model.name = 'm5': it only takes sound with one channel: use it with task = "
                "'speech'"
            )
        layers: list[nn.Module] = [nn.Conv1d(1, 64, 80, stride=4)]
        for inputs, outputs in ((64, 64), (64, 128), (128, 256)):
            layers += [
                nn.BatchNorm1d(inputs),
                nn.ReLU(),
                nn.MaxPool1d(4),
                nn.Conv1d(inputs, outputs, 3, padding=1),
            ]
        layers += [nn.BatchNorm1d(256), nn.ReLU(), nn.MaxPool1d(4)]
        super().__init__(nn.Sequential(*layers), nn.Linear(256, num_classes))
        with torch.no_grad():
            # Raises RuntimeError if the sound is too short. The running statistics are
            # reset later.
            self(torch.zeros(2, *shape))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, num_classes) of waveforms ``x`` (n, 1, 1, L)."""
        logits: Tensor = self.classifier(self.body(x.flatten(1)[:, None]).mean(2))
        return logits

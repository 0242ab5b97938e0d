"""Deep networks of SuPerFed: ResNet9, MobileNet and VGG9, without biases.

Layers are normalised in groups of 16 channels (``nn.GroupNorm``), which needs no
running statistics. Running statistics of heterogeneous clients do not average well, and
a mixture of two models has none. There are as many scales and shifts as in batch
normalisation. Head of each net: the two dense layers.

Source: Hahn, "Algorithms for Collaborative Machine Learning under Statistical
Heterogeneity", dissertation, UNIST 2024, arXiv 2408.00050, Chapter II.
"""

import itertools

from torch import Tensor, nn
from torch.nn import functional

from fedapps.models.base import Classifier, Shape


def resnet9(shape: Shape, num_classes: int) -> Classifier:
    """Four stages of one residual block. 5,054,784 parameters for (3, H, W) and 100
    classes (CIFAR-100 in the source).
    """
    body = nn.Sequential(
        *(
            _conv(shape[0], 64, 3, stride=2),
            _norm(64),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        ),
        *(
            _Residual(64, 64, 1),
            _Residual(64, 128, 1),
            _Residual(128, 256, 2),
            _Residual(256, 512, 2),
        ),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    )
    return Classifier(body, _dense(512, num_classes))


def mobilenet(shape: Shape, num_classes: int) -> Classifier:
    """Four depthwise-separable convolutions. 364,480 parameters for (3, H, W) and 200
    classes (TinyImageNet in the source).
    """
    widths, strides = (32, 64, 128, 256, 512), (1, 2, 2, 1)
    layers = [_conv(shape[0], 32, 3, stride=2), _norm(32), nn.ReLU()]
    for (inputs, outputs), stride in zip(itertools.pairwise(widths), strides, strict=True):
        layers += [
            nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False),
            _norm(inputs),
            nn.ReLU(),
        ]
        layers += [_conv(inputs, outputs, 1), _norm(outputs), nn.ReLU()]
    return Classifier(
        nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), _dense(512, num_classes)
    )


def vgg9(shape: Shape, num_classes: int) -> Classifier:
    """Six convolutions without normalisation. 1,718,416 parameters for (1, 28, 28) and
    62 classes (FEMNIST in the source).

    Images must have at least 16 pixels a side; the final features of images above 28
    pixels are average-pooled.
    """
    layers: list[nn.Module] = []
    channels = shape[0]
    for stage in ((16,), (32,), (64, 128), (256, 512)):
        for width in stage:
            layers += [_conv(channels, width, 3), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Classifier(body, _dense(512, num_classes))


class _Residual(nn.Module):
    """A residual block of two convolutions; the skip connection is a 1 x 1 convolution
    if the shape changes.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            *(
                _conv(inputs, outputs, 3, stride),
                _norm(outputs),
                nn.ReLU(),
                _conv(outputs, outputs, 3),
                _norm(outputs),
            )
        )
        changed = inputs != outputs or stride > 1
        self.skip = (
            nn.Sequential(_conv(inputs, outputs, 1, stride), _norm(outputs))
            if changed
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.block(x) + self.skip(x))


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Module:
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)


def _norm(channels: int) -> nn.Module:
    return nn.GroupNorm(channels // 16, channels)


def _dense(features: int, num_classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(features, 256, bias=False), nn.ReLU(), nn.Linear(256, num_classes, bias=False)
    )

"""Networks of the methods that generate synthetic images: energy-based classifiers, an
auxiliary-classifier GAN, a conditional VAE.

Weights are initialised from a seed. Sizes and layers follow the dissertation's code.

Source: Hahn, "Algorithms for Collaborative Machine Learning under Statistical
Heterogeneity", dissertation, UNIST 2024, arXiv 2408.00050, Chapter IV.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedapps.algorithms.common.options import check_choice
from fedapps.models.base import Classifier, Shape, draw_weights, features_of


class SpectralLinear(nn.Linear):
    """A linear layer with spectral normalisation: its weights are divided by their
    largest singular value.

    The value is computed exactly: power iteration keeps a vector between calls, so
    outputs would depend on the number of past calls.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, outputs) of features (n, inputs)."""
        # one row per class, so this is far cheaper than an SVD of the weights
        gram = self.weight @ self.weight.T
        return functional.linear(
            x, self.weight / torch.linalg.eigvalsh(gram)[-1].clamp(min=1e-12).sqrt(), self.bias
        )


class Block(nn.Module):
    """A residual block: two 3 x 3 convolutions with GroupNorm and SiLU between them; no
    activation after the sum.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            *(
                nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
                nn.GroupNorm(outputs // 2, outputs),
                nn.SiLU(),
            ),
            *(
                nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
                nn.GroupNorm(outputs // 2, outputs),
            ),
        )
        self.skip: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.skip = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                nn.GroupNorm(outputs // 2, outputs),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Map feature maps (n, inputs, H, W) to (n, outputs, H / stride, W /
        stride).
        """
        out: Tensor = self.branch(x) + self.skip(x)
        return out


def energy_resnet10(shape: Shape, num_classes: int) -> Classifier:
    """The dissertation's net: ResNet-10 with SiLU and GroupNorm, spectral norm on the
    last layer.

    4,979,914 parameters for (1, 32, 32) and 10 classes, 4,981,066 for (3, 32, 32).
    """
    body = nn.Sequential(
        *(nn.Conv2d(shape[0], 64, 3, 1, 1, bias=False), nn.GroupNorm(16, 64), nn.SiLU()),
        *(Block(64, 64, 1), Block(64, 128, 2), Block(128, 256, 2), Block(256, 512, 2)),
        *(nn.GroupNorm(64, 512), nn.SiLU(), nn.Flatten()),
    )
    return Classifier(body, SpectralLinear(features_of(body, shape), num_classes))


def energy_cnn(shape: Shape, num_classes: int) -> Classifier:
    """A small net with the same components: convolutions that halve the image down to a
    side of 4 pixels, GroupNorm, SiLU.
    """
    layers: list[nn.Module] = []
    inputs, outputs, side = shape[0], 16, min(shape[1:])
    while side > 4 or not layers:
        layers += [
            nn.Conv2d(inputs, outputs, 3, 2, 1),
            nn.GroupNorm(outputs // 4, outputs),
            nn.SiLU(),
        ]
        inputs, outputs, side = outputs, 2 * outputs, (side + 1) // 2
    body = nn.Sequential(
        *layers, nn.Conv2d(inputs, 64, 3, 1, 1), nn.GroupNorm(16, 64), nn.SiLU(), nn.Flatten()
    )
    return Classifier(body, SpectralLinear(features_of(body, shape), num_classes))


def energy_wide(shape: Shape, num_classes: int) -> Classifier:
    """Two stages with large filters, 5 x 5, and four times the channels."""
    body = nn.Sequential(
        *(nn.Conv2d(shape[0], 64, 5, 2, 2), nn.GroupNorm(8, 64), nn.SiLU()),
        *(nn.Conv2d(64, 64, 5, 2, 2), nn.GroupNorm(8, 64), nn.SiLU(), nn.Flatten()),
    )
    return Classifier(body, SpectralLinear(features_of(body, shape), num_classes))


def energy_residual(shape: Shape, num_classes: int) -> Classifier:
    """Two residual blocks of the paper's net, a quarter as wide."""
    body = nn.Sequential(
        *(nn.Conv2d(shape[0], 16, 3, 1, 1, bias=False), nn.GroupNorm(4, 16), nn.SiLU()),
        *(
            Block(16, 32, 2),
            nn.SiLU(),
            Block(32, 64, 2),
            nn.GroupNorm(16, 64),
            nn.SiLU(),
            nn.Flatten(),
        ),
    )
    return Classifier(body, SpectralLinear(features_of(body, shape), num_classes))


def energy_patches(shape: Shape, num_classes: int) -> Classifier:
    """A linear map of each patch of 4 x 4 pixels, two layers on each patch alone, and
    one layer over all of them.
    """
    body = nn.Sequential(
        *(nn.Conv2d(shape[0], 64, 4, 4), nn.GroupNorm(16, 64), nn.SiLU()),
        *(nn.Conv2d(64, 64, 1), nn.GroupNorm(16, 64), nn.SiLU(), nn.Flatten()),
    )
    features = features_of(body, shape)
    mixed = nn.Sequential(*body, nn.Linear(features, 128), nn.LayerNorm(128), nn.SiLU())
    return Classifier(mixed, SpectralLinear(128, num_classes))


def energy_mlp(shape: Shape, num_classes: int) -> Classifier:
    """No convolution: two hidden layers on all pixels."""
    pixels = int(np.prod(shape))
    layers = [
        nn.Linear(pixels, 256),
        nn.LayerNorm(256),
        nn.SiLU(),
        nn.Linear(256, 128),
        nn.LayerNorm(128),
        nn.SiLU(),
    ]
    return Classifier(nn.Sequential(nn.Flatten(), *layers), SpectralLinear(128, num_classes))


ENERGY_NETS = {
    "energy-cnn": energy_cnn,
    "energy-wide": energy_wide,
    "energy-residual": energy_residual,
    "energy-patches": energy_patches,
    "energy-mlp": energy_mlp,
    "energy-resnet10": energy_resnet10,
}


def build_energy_net(name: str, shape: Shape, num_classes: int, seed: int) -> Classifier:
    """Return an energy net with weights initialised from ``seed`` (Xavier normal;
    biases 0).
    """
    check_choice("net", name, ENERGY_NETS)
    # layers draw weights when they are constructed; these are replaced
    with torch.random.fork_rng(devices=[]):
        net = ENERGY_NETS[name](shape, num_classes)
    draw_weights(net, seed)
    return net


# --- generators -----------------------------------------------------------------------

#: Channels of the generator's stages, in units of ``hidden``, by the number of times it
#: doubles the image size.
_STAGES = {1: (1,), 2: (2, 1), 3: (4, 2, 1), 4: (4, 2, 2, 1)}


class ACGAN(nn.Module):
    """An auxiliary-classifier GAN for images (C, H, W) in [-1, 1]; ``hidden`` = 64 in
    the dissertation.

    G: transposed convolutions from one pixel, BatchNorm, LeakyReLU, tanh. D:
    convolutions, LeakyReLU, dropout, two heads. Both work on a square of 8, 16, ... 64
    pixels with the image in its centre. 1.22 M and 1.71 M parameters for 32 x 32 and
    ``hidden`` = 64.
    """

    latent = 128

    def __init__(self, shape: Shape, num_classes: int, hidden: int = 64) -> None:
        super().__init__()
        self.shape, self.num_classes = shape, num_classes
        stages = next((s for s in _STAGES if 4 * 2**s >= max(shape[1:])), 0)
        if not stages:
            raise ValueError(
                f"images of {shape[1]} x {shape[2]}: this net makes at most 64 x 64 pixels: set "
                "data.resize"
            )
        self.side = 4 * 2**stages
        widths = [hidden * factor for factor in _STAGES[stages]]
        up: list[nn.Module] = []
        inputs, stride = self.latent + num_classes, 1
        for width in widths:
            padding = stride - 1  # the first layer maps one pixel to 4 x 4
            up += [
                nn.ConvTranspose2d(inputs, width, 4, stride, padding, bias=False),
                nn.BatchNorm2d(width),
                nn.LeakyReLU(0.2),
            ]
            inputs, stride = width, 2
        self.generator = nn.Sequential(
            *up, nn.ConvTranspose2d(inputs, shape[0], 4, 2, 1), nn.Tanh()
        )
        down: list[nn.Module] = []
        inputs = shape[0]
        for factor in (1, 2, 4, 4)[:stages]:
            down += [
                nn.Conv2d(inputs, hidden * factor, 4, 2, 1),
                nn.LeakyReLU(0.2),
                nn.Dropout(0.5),
            ]
            inputs = hidden * factor
        last = nn.Conv2d(inputs, inputs, 4)
        self.discriminator = nn.Sequential(
            nn.Sequential(*down, last, nn.LeakyReLU(0.2), nn.Flatten()),
            nn.Linear(inputs, 1 + num_classes),
        )

    def generate(self, z: Tensor, y: Tensor) -> Tensor:
        """Return images (n, C, H, W) in [-1, 1] generated from codes z (n, latent) and
        labels y (n,).
        """
        code = torch.cat([z, functional.one_hot(y, self.num_classes).to(z.dtype)], 1)
        return _middle(self.generator(code[:, :, None, None]), self.shape)

    def discriminate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logit of being real (n,) and those of the classes (n, classes) of
        images x.
        """
        heads = self.discriminator(_padded(x, self.side, -1.0))
        return heads[:, 0], heads[:, 1:]

    def images(self, y: Tensor, rng: np.random.Generator) -> Tensor:
        """Return a new image in [0, 1] for each label."""
        z = torch.from_numpy(rng.uniform(-1, 1, (len(y), self.latent)).astype(np.float32)).to(
            y.device
        )
        return (self.generate(z, y) + 1) / 2


class CVAE(nn.Module):
    """A conditional VAE for images (C, H, W) in [0, 1]; ``hidden`` = 64 in the
    dissertation. The encoder does not see the label.

    Works on a square whose side is a multiple of 16, with the image in its centre. 1.85
    M parameters for 32 x 32.
    """

    latent = 128

    def __init__(self, shape: Shape, num_classes: int, hidden: int = 64) -> None:
        super().__init__()
        self.shape, self.num_classes = shape, num_classes
        self.side = -(-max(shape[1:]) // 16) * 16
        widths = (hidden, hidden, 2 * hidden, 4 * hidden)
        down: list[nn.Module] = []
        inputs = shape[0]
        for width in widths:
            down += [
                nn.Conv2d(inputs, width, 4, 2, 1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(),
            ]
            inputs = width
        self.small = (inputs, self.side // 16, self.side // 16)
        features = inputs * self.small[1] ** 2
        self.encoder = nn.Sequential(*down, nn.Flatten(), nn.Linear(features, 2 * self.latent))
        up: list[nn.Module] = []
        for width in (2 * hidden, hidden, hidden):
            up += [
                nn.ConvTranspose2d(inputs, width, 4, 2, 1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(),
            ]
            inputs = width
        self.decoder = nn.Sequential(
            *(nn.Linear(self.latent + num_classes, features), nn.Unflatten(1, self.small)),
            *(*up, nn.ConvTranspose2d(inputs, shape[0], 4, 2, 1), nn.Sigmoid()),
        )

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and sigma (n, latent) of the codes for images x (n, C, H, W)."""
        mean, spread = self.encoder(_padded(x, self.side, 0.0)).chunk(2, 1)
        return mean, functional.softplus(spread) + 1e-6

    def decode(self, z: Tensor, y: Tensor) -> Tensor:
        """Return images (n, C, H, W) decoded from codes z (n, latent) and labels y
        (n,).
        """
        return _middle(
            self.decoder(torch.cat([z, functional.one_hot(y, self.num_classes).to(z.dtype)], 1)),
            self.shape,
        )

    def images(self, y: Tensor, rng: np.random.Generator) -> Tensor:
        """Return a new image for each label."""
        return self.decode(
            torch.from_numpy(rng.standard_normal((len(y), self.latent), np.float32)).to(y.device), y
        )


def build_generator(
    kind: type[nn.Module], shape: Shape, num_classes: int, hidden: int, seed: int
) -> nn.Module:
    """Return an ``ACGAN`` (weights from N(0, 0.02^2)) or a ``CVAE`` (Xavier normal),
    initialised from ``seed``; biases are 0.
    """
    with torch.random.fork_rng(devices=[]):
        net = kind(shape, num_classes, hidden)
    draw_weights(net, seed)
    if kind is ACGAN:
        generator = torch.Generator().manual_seed(seed)
        for parameter in net.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, 0.0, 0.02, generator=generator)
    return net


def _middle(x: Tensor, shape: Shape) -> Tensor:
    top, left = (x.shape[-2] - shape[1]) // 2, (x.shape[-1] - shape[2]) // 2
    return x[..., top : top + shape[1], left : left + shape[2]]


def _padded(x: Tensor, side: int, value: float) -> Tensor:
    top, left = (side - x.shape[-2]) // 2, (side - x.shape[-1]) // 2
    return functional.pad(
        x, (left, side - x.shape[-1] - left, top, side - x.shape[-2] - top), value=value
    )


GENERATORS: dict[str, type[ACGAN] | type[CVAE]] = {"acgan": ACGAN, "cvae": CVAE}

"""Networks for images, windows of sensors and vectors, by name. The deep nets of
SuPerFed are in ``superfed_nets``, those of AAggFF in ``aaggff_nets``.

A model is a ``body`` followed by a ``classifier``. It declares the parameters of its
head (``model.head``, prefixes of parameter names), for methods that keep one part
local. TwoNN and TwoCNN are the nets of SuPerFed, without biases; their head is the part
that the source defines as the classifier. Every net accepts all images that are large
enough for its convolutions. Nets of dense layers also accept windows (C, 1, L) and
vectors (1, 1, d); ``cnn-1d`` accepts windows.

Sources: ``mcmahan_2nn``: McMahan, Moore, Ramage, Hampson, Aguera y Arcas,
"Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS
2017, arXiv 1602.05629. ``two_nn``, ``two_cnn``: Hahn, Jeong, Lee, "Connecting Low-Loss
Subspace for Personalized Federated Learning", KDD 2022, arXiv 2109.07628.
``mlp_32_32``, ``tutorial_cnn``, ``conv_384_192``, ``conv_120_84``: Shen, Hassani, Kale,
Karbasi, "Federated Functional Gradient Boosting", AISTATS 2022, arXiv 2103.06972, and
its first version (v1).
"""

import itertools
from collections.abc import Callable, Iterable

from torch import nn

from fedapps.algorithms.common.modules import torch_seeded
from fedapps.algorithms.common.options import nearest
from fedapps.errors import UserError
from fedapps.extensions.registered import reference_of
from fedapps.models import aaggff_nets, superfed_nets
from fedapps.models.base import Classifier, Shape, draw_weights, features_of
from fedapps.models.options import PREFIX
from fedapps.models.own_net import build_own


def logistic(shape: Shape, num_classes: int) -> Classifier:
    """Multinomial logistic regression on the pixels. Head: all parameters, so there is
    no body to share.
    """
    return Classifier(nn.Flatten(), _dense(_size(shape), num_classes))


def mlp(shape: Shape, num_classes: int) -> Classifier:
    """One hidden layer of 64: enough for the 8 x 8 digits. Head: the output layer."""
    return Classifier(_hidden(_size(shape), 64), _dense(64, num_classes))


def mcmahan_2nn(shape: Shape, num_classes: int) -> Classifier:
    """The "2NN" of McMahan et al.: two hidden layers of 200, with biases. Head: the
    output layer.

    199,210 parameters for (1, 28, 28) and 10 classes.
    """
    return Classifier(_hidden(_size(shape), 200, 200), _dense(200, num_classes))


def two_nn(shape: Shape, num_classes: int) -> Classifier:
    """TwoNN of the SuPerFed paper: three hidden layers of 200, no biases. Head: the
    last two layers.

    238,800 parameters for (1, 28, 28) and 10 classes.
    """
    return Classifier(
        _hidden(_size(shape), 200, 200, bias=False), _dense(200, 200, num_classes, bias=False)
    )


def two_cnn(shape: Shape, num_classes: int) -> Classifier:
    """TwoCNN of the SuPerFed paper: two 5 x 5 convolutions, no biases. Head: its three
    dense layers.

    722,800 parameters for (3, 28, 28) and 10 classes (the paper scales CIFAR-10 down to
    28 x 28).
    """
    body = nn.Sequential(
        *(nn.Conv2d(shape[0], 32, 5, padding=1, bias=False), nn.ReLU(), nn.MaxPool2d(2, padding=1)),
        *(nn.Conv2d(32, 64, 5, padding=1, bias=False), nn.ReLU(), nn.MaxPool2d(2, padding=1)),
        nn.Flatten(),
    )
    return Classifier(body, _dense(features_of(body, shape), 200, 200, num_classes, bias=False))


def small_cnn(shape: Shape, num_classes: int) -> Classifier:
    """Two 3 x 3 convolutions that halve the image, and a hidden layer of 64. Head: both
    dense layers.
    """
    body = nn.Sequential(
        *(nn.Conv2d(shape[0], 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Flatten(),
    )
    return Classifier(body, _dense(features_of(body, shape), 64, num_classes))


def cnn_1d(shape: Shape, num_classes: int) -> Classifier:
    """For windows of sensors (C, 1, L): two convolutions over time, each of which
    halves the length, and a hidden layer of 64. Head: both dense layers.

    71,942 parameters for 9 channels, 128 steps and 6 classes.
    """
    body = nn.Sequential(
        *(nn.Flatten(2), nn.Conv1d(shape[0], 16, 9, padding=4), nn.ReLU(), nn.MaxPool1d(2)),
        *(nn.Conv1d(16, 32, 9, padding=4), nn.ReLU(), nn.MaxPool1d(2)),
        nn.Flatten(),
    )
    return Classifier(body, _dense(features_of(body, shape), 64, num_classes))


def mlp_32_32(shape: Shape, num_classes: int) -> Classifier:
    """The weak learner of FFGB for MNIST: two hidden layers of 32, LeakyReLU. 26,506
    parameters for (1, 28, 28) and 10 classes.
    """
    body = nn.Sequential(nn.Flatten(), *_leaky_dense(_size(shape), 32, 32))
    return Classifier(body, nn.Linear(32, num_classes))


def tutorial_cnn(shape: Shape, num_classes: int) -> Classifier:
    """The weak learner of FFGB for CIFAR-10: the CNN of PyTorch's tutorial with dense
    layers of 32 and 32.

    17,090 parameters for (3, 32, 32) and 10 classes. Head: the output layer.
    """
    body = nn.Sequential(
        *(nn.Conv2d(shape[0], 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Flatten(),
    )
    return Classifier(
        nn.Sequential(body, _dense(features_of(body, shape), 32, 32), nn.ReLU()),
        nn.Linear(32, num_classes),
    )


def conv_384_192(shape: Shape, num_classes: int) -> Classifier:
    """The net of FFGB-distill for CIFAR: two 5 x 5 convolutions of 64, dense layers of
    384 and 192, LeakyReLU.

    797,962 parameters for (3, 32, 32) and 10 classes. Head: the output layer.
    """
    return _conv_64_64(shape, num_classes, 384, 192)


def conv_120_84(shape: Shape, num_classes: int) -> Classifier:
    """The net of FFGB-distill for EMNIST: as :func:`conv_384_192` with dense layers of
    120 and 84.

    239,502 parameters for (1, 28, 28) and 26 classes.
    """
    return _conv_64_64(shape, num_classes, 120, 84)


MODELS: dict[str, Callable[[Shape, int], Classifier]] = {
    "logistic": logistic,
    "mlp": mlp,
    "mcmahan-2nn": mcmahan_2nn,
    "two-nn": two_nn,
    "two-cnn": two_cnn,
    "small-cnn": small_cnn,
    "cnn-1d": cnn_1d,
    "mlp-32-32": mlp_32_32,
    "tutorial-cnn": tutorial_cnn,
    "conv-384-192": conv_384_192,
    "conv-120-84": conv_120_84,
    "resnet9": superfed_nets.resnet9,
    "mobilenet": superfed_nets.mobilenet,
    "vgg9": superfed_nets.vgg9,
    "celeba-cnn": aaggff_nets.CelebACNN,
    "efficientnet-b0": aaggff_nets.EfficientNetB0,
    "mobilevit-xxs": aaggff_nets.MobileViTXXS,
    "m5": aaggff_nets.M5,
    "linear": logistic,  # its usual name for numeric outputs
}
# The same nets with a pretrained body.
PRETRAINED: dict[str, Callable[[Shape, int], Classifier]] = {
    "efficientnet-b0": lambda shape, num_classes: aaggff_nets.EfficientNetB0(
        shape, num_classes, aaggff_nets.imagenet_features()
    )
}
NAMES = tuple(MODELS)
# Stands for cnn-1d if samples are windows of several channels, else for mlp.
BY_SHAPE = "auto"
# Nets without convolutions, which take samples of any shape.
DENSE: tuple[str, ...] = ("logistic", "mlp", "mcmahan-2nn", "two-nn", "mlp-32-32", "linear")
#: Nets of one layer.
ONE_LAYER = ("linear", "logistic")
# Nets for samples with one row, and those that only take images of one or three
# channels.
ONE_ROW = ("cnn-1d", "m5")
ONE_OR_THREE = ("efficientnet-b0",)


def build_model(
    name: str, input_shape: Shape, num_classes: int, seed: int, pretrained: bool = False
) -> nn.Module:
    """Build model ``name`` for samples (C, H, W) with weights initialised from ``seed``
    (Xavier normal and biases 0, or by the net's own rule).

    The same arguments give the same weights, and the global random state is not
    changed. ``pretrained``: use published weights for the body. A name with a colon is
    the user's own net (``own_net.py``). Raises UserError for an unknown name, missing
    pretrained weights, or samples of a shape that the net does not accept.
    """
    name = net_for(input_shape) if name == BY_SHAPE else name
    own = name not in MODELS and reference_of("model.name", name)
    if own and (not pretrained or name.startswith(PREFIX)):
        return build_own(name, input_shape, num_classes, seed, pretrained)
    if name not in MODELS and not own:
        raise UserError(unknown(name, NAMES))
    if pretrained and name not in PRETRAINED:
        raise UserError(
            f"model.pretrained = true: there are no weights for {name!r}: choose "
            f"{', '.join(PRETRAINED)}, or set it to false"
        )
    _check_shape(name, input_shape)
    # Layers initialise their weights when they are constructed. The weights are
    # replaced below, except in nets with their own rule, which therefore need the seed.
    with torch_seeded(seed):
        try:
            model = (PRETRAINED if pretrained else MODELS)[name](input_shape, num_classes)
        except RuntimeError as error:
            too_small = f"images of {input_shape[1]} x {input_shape[2]} pixels are too small"
            if input_shape[1] == 1:
                too_small = f"windows of {input_shape[2]} steps are too short"
            raise UserError(
                f"model.name = {name!r}: {too_small} for it: choose logistic or mlp"
            ) from error
    if not model.initialised:
        draw_weights(model, seed)
    return model


def unknown(name: str, names: Iterable[str]) -> str:
    """Return the error message for a name that is not one of ``names``."""
    names = list(names)
    module = name if name.replace(".", "").isidentifier() else "MODULE"
    return (
        f"model.name = {name!r}: {nearest(name, names)}choose one of {', '.join(names)}, or name "
        f"your own net as {module}:NAME"
    )


def net_for(shape: Shape) -> str:
    """Return the net that ``auto`` stands for."""
    return "cnn-1d" if shape[0] > 1 and shape[1] == 1 and shape[2] >= 4 else "mlp"


def _check_shape(name: str, shape: Shape) -> None:
    channels, height, width = shape
    one_row = height == 1
    if name in ("m5", *DENSE) or (
        (name in ONE_ROW) == one_row and not (name in ONE_OR_THREE and channels not in (1, 3))
    ):
        return
    if one_row:
        what = (
            f"windows of {channels} channels x {width} steps"
            if channels > 1
            else f"vectors or waveforms of {width} numbers"
        )
        others = ("cnn-1d", *DENSE) if name not in ONE_ROW else DENSE
    else:
        what = (
            f"images of {height} x {width} pixels with {channels} "
            f"channel{'s' if channels > 1 else ''}"
        )
        others = tuple(other for other in NAMES if other not in (*ONE_ROW, *ONE_OR_THREE))
    raise UserError(
        f"model.name = {name!r}: does not take {what}: choose one of {', '.join(others)}"
    )


def _size(shape: Shape) -> int:
    return shape[0] * shape[1] * shape[2]


def _dense(*widths: int, bias: bool = True) -> nn.Sequential:
    """Return fully connected layers of the given widths with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _conv_64_64(shape: Shape, num_classes: int, *widths: int) -> Classifier:
    body = nn.Sequential(
        *(nn.Conv2d(shape[0], 64, 5), nn.LeakyReLU(0.01), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 64, 5), nn.LeakyReLU(0.01), nn.MaxPool2d(2)),
        nn.Flatten(),
    )
    dense = _leaky_dense(features_of(body, shape), *widths)
    return Classifier(nn.Sequential(body, *dense), nn.Linear(widths[-1], num_classes))


def _leaky_dense(*widths: int) -> list[nn.Module]:
    """Return fully connected layers, each followed by LeakyReLU."""
    return [
        layer
        for pair in itertools.pairwise(widths)
        for layer in (nn.Linear(*pair), nn.LeakyReLU(0.01))
    ]


def _hidden(*widths: int, bias: bool = True) -> nn.Sequential:
    """Return a flatten layer and fully connected layers, each followed by ReLU."""
    return nn.Sequential(nn.Flatten(), *_dense(*widths, bias=bias), nn.ReLU())

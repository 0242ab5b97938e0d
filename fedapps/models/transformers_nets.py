"""Nets of the library transformers: ``model.name = "transformers:NET"``, for images and
for characters.

NET is a type of net (``vit``, ``resnet``, ``gpt2``) with the library's default sizes, a
folder with a ``config.json``, or a hub name whose files are in the library's cache.
Weights are random or, with ``model.pretrained``, read from the safetensors files there,
except for the head. Nothing is downloaded, nothing is unpickled, and code next to a
config is never run.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedapps.algorithms.common.modules import torch_seeded
from fedapps.algorithms.common.options import nearest
from fedapps.errors import UserError, first_line, refuse_first
from fedapps.extensions.own_code import guarded
from fedapps.models.base import Shape
from fedapps.models.options import PREFIX

HERE = {"local_files_only": True, "trust_remote_code": False}


class Logits(nn.Module):
    """Wraps a net of the library so that it maps a tensor to logits. Head: all layers
    outside the library's base model.
    """

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net
        layers = [name for name, _ in net.named_children() if name != net.base_model_prefix]
        if hasattr(net, net.base_model_prefix):
            self.head = tuple(f"net.{name}." for name in layers)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images (n, C, H, W) or of tokens (n, length)."""
        logits: Tensor = self.net(**{self.net.main_input_name: x}).logits
        return logits


def image_classifier(name: str, shape: Shape, num_classes: int, pretrained: bool) -> Logits:
    """Return the net ``name`` for images of this shape. With ``pretrained``, the net
    keeps the image shape of its weights.

    New weights come from torch's random generator. Raises ``UserError`` if the net does
    not exist.
    """
    library = transformers_library(f"model.name = {name!r}")
    config = _config(library, name)
    config.num_labels = num_classes
    if pretrained:
        return Logits(_trained(library.AutoModelForImageClassification, name, config))
    channels, height, width = shape
    for key, value in (
        ("num_channels", channels),
        ("image_size", height if height == width else (height, width)),
    ):
        if hasattr(config, key):
            setattr(config, key, value)
    return Logits(
        library.AutoModelForImageClassification.from_config(config, trust_remote_code=False).float()
    )


def character_net(name: str, vocabulary: int, length: int, seed: int) -> Logits:
    """Return the language model ``name`` for texts of ``length`` tokens out of
    ``vocabulary``, with weights initialised from ``seed``.

    Raises ``UserError`` if the model does not exist, or if it does not predict the next
    token from those before it.
    """
    library = transformers_library(f"model.name = {name!r}")
    config = _config(library, name)
    # The special tokens of the library's vocabularies have no meaning here. Positions
    # after the end of a text are not scored.
    for key, value in (
        ("vocab_size", vocabulary),
        ("use_cache", False),
        *((f"{end}_token_id", None) for end in ("pad", "bos", "eos")),
    ):
        setattr(config, key, value)
    with torch_seeded(seed):
        with guarded("model.name", name, "cannot be built as a language model", own=True):
            net = Logits(
                library.AutoModelForCausalLM.from_config(config, trust_remote_code=False).float()
            )
        _check_causal(name, net, vocabulary, length)
    return net


@torch.no_grad()
def _check_causal(name: str, net: Logits, vocabulary: int, length: int) -> None:
    tokens = torch.arange(length)[None] % vocabulary
    last = tokens.clone()
    last[0, -1] = (last[0, -1] + 1) % vocabulary
    with guarded("model.name", name, f"does not take texts of {length} characters", own=True):
        out, other = net.eval()(tokens), net(last)
    net.train()
    if out.shape != (1, length, vocabulary):
        raise UserError(
            f"model.name = {name!r}: its output is {tuple(out.shape)}, not {vocabulary} logits for "
            "each character"
        )
    if not torch.allclose(out[:, :-1], other[:, :-1], rtol=1e-4, atol=1e-5):
        raise UserError(
            f"model.name = {name!r}: sees the characters that it must predict: choose a causal "
            "language model such as gpt2"
        )


def _config(library: Any, name: str) -> Any:
    """Return the config that ``name`` stands for."""
    net = name.removeprefix(PREFIX)
    path = Path(net).expanduser()
    refuse_first(
        (
            not net,
            f"model.name = {name!r}: name a type of net, a folder with a config.json, or a hub "
            "name",
        ),
        (
            net.startswith(("/", ".", "~")) and not path.is_dir(),
            f"model.name = {name!r}: there is no folder {net!r}",
        ),
    )
    if not path.is_dir() and "/" not in net:
        known = list(library.models.auto.configuration_auto.CONFIG_MAPPING_NAMES)
        if net not in known:
            raise UserError(
                f"model.name = {name!r}: {nearest(net, known)}neither a type of net nor a folder "
                "has this name"
            )
        return library.AutoConfig.for_model(net)
    try:
        return library.AutoConfig.from_pretrained(path if path.is_dir() else net, **HERE)
    except Exception as error:  # the library raises errors of many kinds
        if path.is_dir():
            raise UserError(
                f"model.name = {name!r}: its config cannot be read: {first_line(error)}"
            ) from error
        raise UserError(
            f"model.name = {name!r}: is not in the library's cache: fetch it with `hf download "
            f"{net}`, or name a folder"
        ) from error


def _trained(kind: Any, name: str, config: Any) -> Any:
    net = name.removeprefix(PREFIX)
    path = Path(net).expanduser()
    if not path.is_dir() and "/" not in net:
        raise UserError(
            f"model.pretrained = true: {name!r} is a type of net without weights: choose a folder "
            "or a hub name"
        )
    chosen = {
        **HERE,
        "use_safetensors": True,
        "ignore_mismatched_sizes": True,
        "output_loading_info": True,
    }
    try:
        model, report = kind.from_pretrained(
            path if path.is_dir() else net, config=config, **chosen
        )
    except Exception as error:
        raise UserError(
            f"model.pretrained = true: cannot read model.safetensors of {name!r}: "
            f"{first_line(error)}"
        ) from error
    others = {
        key if isinstance(key, str) else key[0]
        for part in ("missing_keys", "mismatched_keys")
        for key in report[part]
    }
    if missing := sorted(key for key in others if key.startswith(f"{model.base_model_prefix}.")):
        raise UserError(
            f"model.pretrained = true: {name!r} lacks weights of this net ({missing[0]}): choose a "
            "folder with complete weights"
        )
    return model.float()


def transformers_library(setting: str) -> Any:
    """Return the library, which shows no progress and no warnings from then on. Raises
    ``UserError``, which begins with the setting, if it is not installed.
    """
    try:
        import transformers
    except ImportError:
        raise UserError(
            f"{setting}: transformers is not installed: pip install 'fedapps[text]'"
        ) from None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers

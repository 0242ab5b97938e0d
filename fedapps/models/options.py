"""Options of the model of a run."""

from dataclasses import dataclass
from pathlib import Path

from fedapps.algorithms.common.options import Options, option
from fedapps.algorithms.common.seeds import derived_seed

#: Before the name of a net of the library transformers, or of a folder with one.
PREFIX = "transformers:"


@dataclass(frozen=True)
class ModelOptions(Options):
    """Options of the model (table ``model``)."""

    name: str = option(
        "auto",
        "a net of fedapps/models, of a library (timm:, torchvision:, transformers:NAME), or your "
        "own as module:name; auto: mlp for images and vectors, cnn-1d for windows, logistic for "
        "tables, char-lstm for text; several, separated by commas: client k has the k-th, they "
        "repeat (methods that send no net)",
    )
    weights: str = option(
        "", "safetensors file with the weights to start from, under the net's parameter names"
    )
    start: str = option(
        "auto",
        "zero: nets linear and logistic start at 0; auto: zero in tasks on tables, but random with "
        "superfed",
        choices=["auto", "random", "zero"],
    )
    pretrained: bool = option(
        False,
        "start from published weights (efficientnet-b0, transformers:FOLDER, the DistilBERT of "
        "text-pairs)",
    )
    head: str = option(
        "",
        'fedper, lg-fedavg, fedrep: the layers of the head, separated by commas; "": those that '
        "the net declares",
    )
    adapter: str = option(
        "none",
        "lora: clients train low-rank additions to the weights of the net, which stays as it is, "
        "and its head; only these are sent",
        choices=["none", "lora"],
    )
    lora_rank: int = option(8, "r, rank of the additions", low=1)
    lora_alpha: float = option(8.0, "alpha: additions count alpha / r", low=0, open_low=True)
    lora_targets: str = option(
        "*",
        "layers that get them: names of linear or convolutional layers separated by commas, in "
        'which "*" matches anything; never those of the head',
    )
    frozen: str = option(
        "", "digest of the frozen weights, which `fedapps run` fills in: sites must have the same"
    )


def local_name(name: str) -> str:
    """Return the value of ``model.name``, with the path of a folder made absolute:
    workers run in another directory.
    """
    path = Path(name.removeprefix(PREFIX)).expanduser()
    return f"{PREFIX}{path.absolute()}" if name.startswith(PREFIX) and path.is_dir() else name


def names_of_nets(text: str) -> list[str]:
    """Return the nets that a setting names, separated by commas."""
    return [name.strip() for name in text.split(",")]


def net_of(text: str, client: int | str) -> str:
    """Return the one of these nets that a client has: client k the k-th, and they
    repeat; of a site with a name, one that its name draws.
    """
    names = names_of_nets(text)
    number = client if isinstance(client, int) else derived_seed(0, "net", client)
    return names[number % len(names)]

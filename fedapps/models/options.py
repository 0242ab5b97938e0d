"""Options of the model of a run."""

from dataclasses import dataclass

from algorithms.common.options import Options, option


@dataclass(frozen=True)
class ModelOptions(Options):
    """Options of the model (table ``model``)."""

    name: str = option(
        "auto",
        "a net of fedapps/models, or one of yours as module:name; "
        "auto: mlp for images and vectors, cnn-1d for windows, logistic for tables, char-lstm for text",
    )
    weights: str = option("", "safetensors file of the weights to start from, by the net's names")
    pretrained: bool = option(False, "start from published weights (efficientnet-b0, and the DistilBERT of task text-pairs)")
    head: str = option("", 'fedper, lg-fedavg, fedrep: layers that are the head, separated by commas; "": as the net declares')

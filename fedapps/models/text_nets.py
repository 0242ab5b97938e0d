"""Recurrent nets that predict the next token at every position of a text.

Source of the sizes: Caldas, Duddu, Wu, Li, Konečný, McMahan, Smith, Talwalkar, "LEAF: A
Benchmark for Federated Settings", 2018, arXiv 1812.01097.
"""

from torch import Tensor, nn

from fedapps.algorithms.common.modules import torch_seeded
from fedapps.models.base import Classifier

#: Width of the embedding, width and number of the LSTM layers. ``stacked-lstm`` has
#: LEAF's sizes for Shakespeare.
SIZES = {"char-lstm": (8, 64, 1), "stacked-lstm": (8, 256, 2)}
NAMES = tuple(SIZES)


class StackedLSTM(Classifier):
    """Maps tokens (n, length), int64, to logits (n, length, vocabulary). Head: the
    output layer.

    5,565,328 parameters with a vocabulary of 10,000, embedding 200, hidden 256 and 2
    layers (the Reddit net of LEAF).
    """

    initialised = True

    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int) -> None:
        body = nn.Sequential(
            nn.Embedding(vocabulary, embedding),
            nn.LSTM(embedding, hidden, layers, batch_first=True),
            _Outputs(),
        )
        super().__init__(body, nn.Linear(hidden, vocabulary))


class _Outputs(nn.Module):
    """Selects the outputs at all positions from the values that an LSTM returns."""

    def forward(self, returned: tuple[Tensor, tuple[Tensor, Tensor]]) -> Tensor:
        return returned[0]


def build_lstm(vocabulary: int, embedding: int, hidden: int, layers: int, seed: int) -> StackedLSTM:
    """Return a net with torch's default initialisation from ``seed``. The global random
    state is not changed.
    """
    with torch_seeded(seed):
        return StackedLSTM(vocabulary, embedding, hidden, layers)

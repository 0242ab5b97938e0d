"""Task ``text``: next-character prediction. One client per speaking role; the data set
is LEAF's Shakespeare (715 roles).

The vocabulary is fixed: 0 padding, 1 any other character, 2 the end of a line, then
printable ASCII (32 to 126): 98 tokens. A role's texts are joined line by line and cut
into sequences of ``length`` characters. The target at a position is the next character,
so a text of n characters has n - 1 targets. The last sequence is padded; padding counts
neither in training nor in the metrics.

Source of the data set: Caldas, Duddu, Wu, Li, Konečný, McMahan, Smith, Talwalkar,
"LEAF: A Benchmark for Federated Settings", 2018, arXiv 1812.01097.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedapps.algorithms.common.options import nearest
from fedapps.clients.base.data import ClientData, Split
from fedapps.clients.base.evaluation import NEXT_TOKEN
from fedapps.data.corpus import DEFAULT_ROLES, read_rows, speech
from fedapps.data.source import GENERATED
from fedapps.errors import UserError
from fedapps.models.options import PREFIX
from fedapps.models.text_nets import NAMES, SIZES, build_lstm
from fedapps.models.transformers_nets import character_net
from fedapps.notes import logger
from fedapps.tasks.base import TorchTask
from fedapps.tasks.context import RunContext
from fedapps.tasks.options import TextOptions

PADDING, OTHER, NEWLINE = 0, 1, 2
FIRST, LAST = 32, 126  # printable ASCII
VOCABULARY = 3 + LAST - FIRST + 1
Tokens = NDArray[np.uint8]


@dataclass(frozen=True)
class Play:
    """The text of each role as tokens, ``roles`` in sorted order. ``passed_over``: the
    number of roles with too little text.
    """

    roles: tuple[str, ...]
    train: tuple[Tokens, ...]
    test: tuple[Tokens, ...]
    passed_over: int = 0


class Text(TorchTask):
    """Next-character prediction, one client per speaking role; fewer clients than
    roles: the first roles are used.
    """

    name = "text"
    objective = NEXT_TOKEN
    from_clients = ""  # the vocabulary is fixed

    def __init__(self, options: Any, context: RunContext) -> None:
        super().__init__(options, context)
        self.options: TextOptions = options
        self.source = context.data.source
        if context.model.name not in NAMES and not context.model.name.startswith(PREFIX):
            near = nearest(context.model.name, NAMES)
            raise UserError(
                f"model.name = {context.model.name!r}: {near}task 'text' has {', '.join(NAMES)}, "
                f"{PREFIX}NET"
            )

    def play(self, num_clients: int) -> Play:
        """Return the texts; a generated play has one role per client, and at least
        ``DEFAULT_ROLES``.
        """
        o = self.options
        if self.source == GENERATED:
            return generated_play(max(num_clients, DEFAULT_ROLES))
        return read_play(self.source, o.role, o.text, o.min_characters)

    def natural_clients(self) -> int:
        """Return the number of roles in a folder; 0 for generated texts, which have any
        number.
        """
        return 0 if self.source == GENERATED else len(self.play(0).roles)

    def client_names(self, num_clients: int) -> tuple[str, ...]:
        """Return the names of the roles; () for generated texts."""
        return tuple(self.play(0).roles) if self.natural_clients() else ()

    def check(self, num_clients: int) -> None:
        """Read the texts and build the model."""
        play = self.play(num_clients)
        if num_clients > len(play.roles):
            raise UserError(
                f"num-clients = {num_clients}, but {self.source} has {len(play.roles)} "
                "roles with at least "
                f"{self.options.min_characters} characters in training and 2 in test "
                f"({play.passed_over} have fewer): "
                f"choose at most {len(play.roles)} (--nodes)"
            )
        if play.passed_over:
            logger.warning(
                "%d roles of %s have too little text and are passed over",
                play.passed_over,
                self.source,
            )
        self.initial_arrays()

    def model_fn(self, seed: int) -> nn.Module:
        """Return a newly initialised model."""
        name, pretrained = self.context.model.name, self.context.model.pretrained
        if not name.startswith(PREFIX):
            return build_lstm(VOCABULARY, *SIZES[name], seed).to(self.device)
        if pretrained:
            raise UserError(
                f"model.pretrained = true: the {VOCABULARY} characters of task 'text' are no net's "
                "vocabulary: leave it false"
            )
        return character_net(name, VOCABULARY, self.options.length, seed).to(self.device)

    def prepare(self, client: int, num_clients: int) -> ClientData:
        """Return the sequences of a role; if none can be spared for validation, the
        training sequences are used.
        """
        play = self.play(num_clients)
        train, test = (
            Split(*sequences(part[client], self.options.length)) for part in (play.train, play.test)
        )
        kept = max(1, len(train) - math.ceil(self.options.validation * len(train)))
        left, spared = Split(train.x[:kept], train.y[:kept]), Split(train.x[kept:], train.y[kept:])
        chosen_by = spared
        if self.options.score_on == "validation":
            test = spared
        elif self.options.score_on == "held-out":
            chosen_by, test = (Split(spared.x[i::2], spared.y[i::2]) for i in (1, 0))
        return ClientData(left, chosen_by if len(chosen_by) else left, test)


def encode(text: str) -> Tokens:
    """Return the tokens of a text, one per character."""
    codes = np.frombuffer(text.encode("utf-32-le", "replace"), "<u4")
    tokens = np.where((codes >= FIRST) & (codes <= LAST), codes - FIRST + 3, OTHER)
    return np.where(codes == ord("\n"), NEWLINE, tokens).astype(np.uint8)


def sequences(tokens: Tokens, length: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets (n, length), int64: targets are one character ahead;
    positions beyond the end are padding.
    """
    rows = max(1, -(-(len(tokens) - 1) // length))
    padded = np.full(rows * length + 1, PADDING, np.int64)
    padded[: len(tokens)] = tokens
    x, y = padded[:-1].reshape(rows, length), padded[1:].reshape(rows, length)
    return torch.from_numpy(np.where(y == PADDING, PADDING, x)), torch.from_numpy(y.copy())


@lru_cache(maxsize=4)
def read_play(source: str, role: str, text: str, min_characters: int) -> Play:
    """Return the roles of a folder with at least ``min_characters`` characters in
    training and 2 in test.
    """
    parts: list[dict[str, Tokens]] = []
    for split in ("train", "test"):
        said: dict[str, list[str]] = {}
        for name, line in read_rows(source, split, role, text, "text"):
            said.setdefault(name, []).append(line)
        parts.append({name: encode("\n".join(lines)) for name, lines in said.items()})
    train, test = parts
    roles = sorted(
        name
        for name in train
        if len(train[name]) >= min_characters and len(test.get(name, ())) >= 2
    )
    return Play(
        tuple(roles),
        tuple(train[name] for name in roles),
        tuple(test[name] for name in roles),
        len(train | test) - len(roles),
    )


@lru_cache(maxsize=4)
def generated_play(num_roles: int) -> Play:
    """Return the generated play of ``fedapps.data.corpus``, as running text."""
    speeches = [speech(number) for number in range(num_roles)]
    return Play(
        tuple(f"role{number:05d}" for number in range(num_roles)),
        tuple(encode(" ".join(said[cut:])) for said, cut in speeches),
        tuple(encode(" ".join(said[:cut])) for said, cut in speeches),
    )

"""Task ``words``: next-word prediction. The AAggFF chapter uses LEAF's Reddit data set
and a stacked LSTM.

A row is one text: a string, which is split at white space, a list of words or of lines
of words; ``data.natural-id`` names its user. The vocabulary is the most frequent words
of the whole data set, as in LEAF. Unknown words and the tokens for beginning, end and
padding are inputs but not targets: they count neither in the loss nor in the accuracy.

Sources: Caldas, Duddu, Wu, Li, Konečný, McMahan, Smith, Talwalkar, "LEAF: A Benchmark
for Federated Settings", 2018, arXiv 1812.01097; Hahn, "Algorithms for Collaborative
Machine Learning under Statistical Heterogeneity", dissertation, UNIST 2024, arXiv
2408.00050, Chapter III.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
from torch import nn

from fedapps.clients.base.data import ClientData, Split
from fedapps.clients.base.evaluation import next_token
from fedapps.data.cache import Entry
from fedapps.data.columns import check_columns, groups_of
from fedapps.data.source import Samples, Source
from fedapps.data.sources import cached
from fedapps.errors import UserError
from fedapps.models.text_nets import build_lstm
from fedapps.tasks.context import RunContext
from fedapps.tasks.dealt_samples import DealtSamples
from fedapps.tasks.options import WORD_MARKS, WordsOptions

PADDING, BEGINNING, END, UNKNOWN = range(4)
LEAF_MARKS = ("<PAD>", "<BOS>", "<EOS>")


class Words(DealtSamples):
    """Next-word prediction."""

    name = "words"
    objective = next_token(WORD_MARKS)
    from_clients = "the vocabulary, the most frequent words of all clients"

    def __init__(self, options: Any, context: RunContext) -> None:
        super().__init__(options, context)
        self.options: WordsOptions = options
        if context.model.name != "stacked-lstm":
            raise UserError(
                f"model.name = {context.model.name!r}: task 'words' has one net: choose "
                "stacked-lstm or auto"
            )
        if context.data.partition not in ("natural", "iid"):
            raise UserError(
                f"data.partition = {context.data.partition!r}: task 'words' has no labels: choose "
                "natural or iid"
            )

    def read(self) -> Samples:
        """Return the tokens (N, length + 1) of all texts: each row is one sample
        followed by the next word.
        """
        data, options = self.context.data, self.options
        user = data.natural_id if data.partition == "natural" else ""
        source = Source(data.source, data.split, data.config)
        wanted = {"words": options.text, "vocabulary": str(options.vocabulary)}
        wanted |= {"length": str(options.length), "natural-id": user}
        return Samples.of(
            *cached(source, wanted, lambda split, _: _decode(split, source, options, user))
        )

    def model_fn(self, seed: int) -> nn.Module:
        """Return a newly initialised LSTM."""
        options = self.options
        return build_lstm(
            options.vocabulary, options.embedding, options.hidden, options.layers, seed
        ).to(self.device)

    def prepare(self, client: int, num_clients: int) -> ClientData:
        """Return a client's samples: tokens (n, length) and the next token at each
        position (n, length).
        """
        data = super().prepare(client, num_clients)
        return ClientData(
            *(
                Split(part.x[:, :-1], part.x[:, 1:])
                for part in (data.train, data.validation, data.test)
            )
        )


def _decode(split: Any, source: Source, options: WordsOptions, user: str) -> Entry:
    check_columns(split, source, {"words.text": options.text, "data.natural-id": user})
    texts = [_words(text, options.text) for text in split[options.text]]
    numbers = vocabulary(texts, options.vocabulary)
    natural, names = (
        groups_of(split, source, user) if user else (np.zeros(len(texts), np.int64), [])
    )
    rows: list[list[int]] = []
    owners: list[int] = []
    for text, owner in zip(texts, natural.tolist(), strict=True):
        cut = windows([numbers.get(word, UNKNOWN) for word in text], options.length)
        rows += cut
        owners += [owner] * len(cut)
    if not rows:
        raise UserError(
            f"words.text = {options.text!r}: {source} has no words in it: name another column"
        )
    arrays = {"x": np.array(rows, np.int64), "labels": np.zeros(len(rows), np.int64)}
    if user:
        arrays["clients"] = np.array(owners, np.int64)
    return arrays, {"names": {"clients": names} if user else {}}


def _words(text: Any, column: str) -> list[str]:
    """Return the words of a text, a list of words, or a list of lines of words, as LEAF
    keeps them; its marks are left out.
    """
    if isinstance(text, str):
        return text.split()
    if isinstance(text, list) and all(isinstance(line, list) for line in text):
        text = [word for line in text for word in line]
    if isinstance(text, list) and all(isinstance(word, str) for word in text):
        return [word for word in text if word not in LEAF_MARKS]
    raise UserError(
        f"words.text = {column!r}: holds {type(text).__name__}, neither a text nor a list of "
        "words: name another column"
    )


def vocabulary(texts: Iterable[list[str]], size: int) -> dict[str, int]:
    """Return word -> token (from 4) for the ``size - 4`` most frequent words; ties are
    broken alphabetically.
    """
    counts = Counter(word for text in texts for word in text)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: number for number, word in enumerate(ranked[: size - WORD_MARKS], WORD_MARKS)}


def windows(numbers: list[int], length: int) -> list[list[int]]:
    """Return a text, with its special tokens, in rows of ``length + 1`` that overlap by
    one: each word is a target once.

    The last row is padded. Rows without a target other than special tokens are left
    out.
    """
    marked = [BEGINNING, *numbers, END]
    rows = [marked[start : start + length + 1] for start in range(0, len(marked) - 1, length)]
    return [row + [PADDING] * (length + 1 - len(row)) for row in rows if max(row[1:]) >= WORD_MARKS]

"""Word counts by speaking role: the data of the unigram task.

Preprocessing as in the paper: punctuation is removed (``four-score`` becomes
``fourscore``, ``sav'd`` becomes ``savd``), text is lower-cased and split at white
space. The vocabulary holds the words of the training texts and one entry for all
unknown words, so that nothing of the test texts enters it.

Source: Hamer, Mohri, Suresh, "FedBoost: Communication-Efficient Algorithms for
Federated Learning", ICML 2020, section 5.2.
"""

import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from fedapps.algorithms.common.seeds import generator
from fedapps.clients.families.ensemble_data import Histogram
from fedapps.data.columns import check_columns
from fedapps.data.source import GENERATED, Source
from fedapps.data.sources import open_split
from fedapps.errors import UserError, reason

UNKNOWN = "<unk>"
DEFAULT_ROLES = 40  # of the generated corpus, if num-clients is 0
TOPICS, WORDS, SHARED_PART, TEST_PART = 5, 300, 0.5, 0.2

_PUNCTUATION = re.compile(r"[^\w\s]|_")
Texts = dict[str, Counter[str]]  # role -> how often it says each word


@dataclass(frozen=True)
class Corpus:
    """``vocabulary`` (V words, the last one is ``<unk>``), sorted ``roles``, and each
    role's word histogram for training and test.
    """

    vocabulary: tuple[str, ...]
    roles: tuple[str, ...]
    train: tuple[Histogram, ...]
    test: tuple[Histogram, ...]


def words(text: str) -> list[str]:
    """Return the words of a text, preprocessed as described in the module docstring."""
    return _PUNCTUATION.sub("", text.lower()).split()


@lru_cache(maxsize=4)
def read_corpus(source: str, role: str, text: str, num_roles: int) -> Corpus:
    """Return the first ``num_roles`` roles (0: all) of a folder, or of the generated
    corpus.

    Roles without training text are skipped; a role without test text has an empty test
    histogram. Raises ``UserError`` if the folder cannot be read, lacks the columns, or
    has fewer roles.
    """
    if source == GENERATED:
        train, test = generate(num_roles or DEFAULT_ROLES)
    else:
        train, test = {}, {}
        for split, texts in (("train", train), ("test", test)):
            for name, line in read_rows(source, split, role, text, "unigram"):
                texts.setdefault(name, Counter()).update(words(line))
    roles = sorted(name for name, counts in train.items() if counts)
    if len(roles) < max(1, num_roles):
        raise UserError(
            f"num-clients = {num_roles}, but {source} has {len(roles)} roles with text: choose "
            f"1..{len(roles)}"
        )
    roles = roles[: num_roles or None]
    vocabulary = [*sorted(set().union(*(train[name] for name in roles))), UNKNOWN]
    place = {word: number for number, word in enumerate(vocabulary)}
    return Corpus(
        tuple(vocabulary),
        tuple(roles),
        tuple(_histogram(train[name], place) for name in roles),
        tuple(_histogram(test.get(name, Counter()), place) for name in roles),
    )


def generate(num_roles: int) -> tuple[Texts, Texts]:
    """Return training and test texts of a small synthetic play: Zipf's law, one topic
    per role, and roles of unequal length.

    The corpus is the same in every run, and role i does not depend on the number of
    roles.
    """
    speeches = {f"role{number:05d}": speech(number) for number in range(num_roles)}
    return (
        {name: Counter(said[cut:]) for name, (said, cut) in speeches.items()},
        {name: Counter(said[:cut]) for name, (said, cut) in speeches.items()},
    )


def speech(number: int) -> tuple[list[str], int]:
    """Return the words of one role of the synthetic play, and how many of them, from
    the start, are its test text.
    """
    rank = 1 / np.arange(1, WORDS + 1)
    rng = generator(0, "generated corpus", number)
    topic = np.roll(rank, WORDS // TOPICS * (number % TOPICS))
    chances = SHARED_PART * rank / rank.sum() + (1 - SHARED_PART) * topic / topic.sum()
    said = rng.choice(
        WORDS, size=int(rng.integers(100, 200) * (1 + 10 / (1 + number % 10))), p=chances
    )
    return [f"w{word}" for word in said], int(TEST_PART * len(said))


def _histogram(counts: Counter[str], place: dict[str, int]) -> Histogram:
    numbers: Counter[int] = Counter()
    for word, count in counts.items():
        numbers[place.get(word, len(place) - 1)] += count
    return Histogram.of_counts(numbers, len(place))


def read_rows(source: str, split: str, role: str, text: str, table: str) -> list[tuple[str, str]]:
    """Return the pairs (role, text) of one split of a `datasets` folder, in its order;
    rows without either value are left out.

    ``table``: name of the settings table, for error messages.
    """
    folder = Path(source).expanduser()
    if not folder.is_dir():
        raise UserError(
            f"data.source = {source!r}: there is no such folder: name one that "
            "datasets.load_dataset reads, or 'generated'"
        )
    try:
        data = open_split(Source(str(folder.resolve()), split))
    except UserError as error:
        raise UserError(
            f"data.source = {source!r}: split {split!r} cannot be read ({reason(error)}): it "
            "needs train and test"
        ) from error
    columns = {f"{table}.role": role, f"{table}.text": text}
    check_columns(data, Source(source, split), columns)
    pairs = zip(data[role], data[text], strict=True)
    return [(str(name), str(line)) for name, line in pairs if name is not None and line is not None]

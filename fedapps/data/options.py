"""Options of a run's data: which set and how it is dealt, the server's public images,
synthetic sets, sites with their own data.
"""

import tomllib
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import Any

from fedapps.algorithms.common.options import Options, check_choice, names_in, option
from fedapps.algorithms.common.partitioners import KINDS
from fedapps.toml_text import parse_toml

#: Known tables; defined in ``fedapps.data.tables``.
PRESETS = ("heart", "berka")
PARTITIONS = ("iid", "pathological", "dirichlet", "dirichlet-clients", "natural", "sorted-share")
#: Before the name of a partitioner of flwr-datasets.
FLOWER = "flwr:"
#: Those that make a client of each value of a column, or of several: it is no property
#: of a sample that a net could learn from.
BY_CLIENT = ("GroupedNaturalIdPartitioner", "NaturalIdPartitioner")


def whole_numbers(text: str) -> tuple[int, ...]:
    """Return the whole numbers between the commas of a text; () if it holds others."""
    parts = [part.strip() for part in text.split(",")]
    return tuple(map(int, parts)) if all(part.isdigit() for part in parts) else ()


def _check(options: Options, *rules: tuple[str, object, str]) -> None:
    """Raise ``ValueError`` for the first of the rules (option, whether it is broken,
    rule and remedy) that is broken.
    """
    for key, broken, rule in rules:
        if broken:
            raise ValueError(f"{key} = {getattr(options, key.replace('-', '_'))!r}: {rule}")


@dataclass(frozen=True)
class DataOptions(Options):
    """Options of the data set and its partition (table ``data``)."""

    source: str = option(
        "digits",
        "a folder or file (csv, parquet, npz, npy, images), a hub name (owner/name), or a bundled "
        "set (docs/tasks.md); auto: that of the task",
    )
    config: str = option("", "configuration of a hub set that has several")
    split: str = option("train", "split that is dealt to the clients")
    test: str = option(
        "", 'split that clients are scored on; "": 20 % of their samples of the other'
    )
    validation_split: str = option(
        "",
        'split that models are chosen by; "": a share of the one that is dealt (data.validation)',
    )
    part: str = option(
        "",
        'column that marks each sample as train, validation or test; "": none',
    )
    partition: str = option(
        "pathological",
        f"how samples are dealt to clients: {', '.join(PARTITIONS)}; or {FLOWER}NAME, a "
        "partitioner of flwr-datasets; auto: natural of a table and with natural-id",
    )
    partition_arguments: str = option(
        "", f'{FLOWER}NAME: its arguments: alpha = 0.3, partition_by = "label"'
    )
    classes_per_client: int = option(2, "pathological: number of classes per client", low=1)
    alpha: float = option(
        0.5,
        "dirichlet, dirichlet-clients: concentration; small is heterogeneous",
        low=0,
        open_low=True,
    )
    share: float = option(
        0.1,
        "sorted-share: part dealt at random, the rest in blocks of the label order",
        low=0,
        high=1,
    )
    natural_id: str = option(
        "",
        'natural: the column with each sample\'s client; @file: one file per client; "": of a '
        "table that of its preset, or client",
    )
    group: str = option(
        "",
        "column whose values (a sex, a site) are groups that the test samples are scored by, too; "
        '"": none',
    )
    group_edges: str = option(
        "",
        'limits between groups of a column of numbers, separated by commas (40,60); "": its values',
    )
    image: str = option("", 'column of the images; "": found')
    features: str = option(
        "", 'columns of arrays or numbers instead, separated by commas, * for any text; "": found'
    )
    preset: str = option(
        "auto",
        "tables: known columns, used where the settings name none; auto: recognised by their names",
        choices=["auto", "none", *PRESETS],
    )
    categorical: str = option(
        "", "tables: columns of numbers that are categories; columns of text are"
    )
    drop: str = option("", "tables: columns to leave out")
    drop_clients: str = option("", "tables: clients to leave out")
    shape: str = option(
        "", 'axes of an array: 9,128 makes 9 channels of 128 steps of 1152 numbers; "": as stored'
    )
    channels: str = option(
        "first", "axis of an array that holds its channels", choices=["first", "last"]
    )
    standardise: str = option(
        "auto",
        "mean 0 and deviation 1 per channel or column, of each client or from sums over all; "
        "auto: sums for arrays and tables, client for task tabular, none for images",
        choices=["auto", "none", "client", "sums"],
    )
    label: str = option("", 'column of the labels; "": found')
    clip: float = option(
        5.0, "tables: standardised numbers are cut at this many deviations; 0: not", low=0
    )
    split_seed: str = option(
        "0",
        "seed that deals and splits the samples; seed: that of the run",
    )
    group_split: str = option(
        "",
        'natural: column (a person, a visit) whose rows stay in one part; "": none',
    )
    score_on: str = option(
        "test",
        "part that clients are scored on; held-out: half of the validation samples, unused else",
        choices=["test", "validation", "held-out"],
    )
    folds: int = option(
        0, "equal parts of each client's samples, of which one is the test set; 0: 20 % are", low=0
    )
    fold: int = option(0, "which of the folds is the test set, from 0", low=0)
    test_rows: bool = option(
        False, "test-rows.csv: label and result of every test sample (simulations only)"
    )
    min_samples: int = option(5, "least number of samples of a client", low=3)
    validation: float = option(
        0.2,
        "part of a client's samples, beside 20 % for testing; 0: training samples serve instead",
        low=0,
        high=0.6,
    )
    resize: int = option(
        0, "side of the square that images are cropped and resized to; 0: as they are", low=0
    )
    augment: str = option(
        "none",
        "images of training batches; crop-flip: shifted by up to 4 pixels, half of them mirrored",
        choices=["none", "crop-flip"],
    )
    class_weights: bool = option(False, "weigh the training loss of rare classes up")
    max_samples: int = option(0, "use only this many samples, evenly spaced; 0: all", low=0)
    noise: str = option(
        "none",
        "training labels are flipped to the next class (pair) or to any other (symmetric)",
        choices=["none", *KINDS],
    )
    noise_ratio: float = option(0.0, "probability of a flip", low=0, high=1, open_high=True)
    noise_validation: bool = option(
        False, "validation labels are flipped, too: a site with noisy labels has no clean ones"
    )
    synthetic: str = option(
        "",
        'folder of a synthetic set, as fedevg, fedcgan or fedcvae leave it, to start from; "": '
        "none",
    )
    synthetic_use: str = option(
        "pretrain",
        "train the initial model on that set, or mix it into every client's samples",
        choices=["pretrain", "mix"],
    )

    def check(self) -> None:
        """Check what belongs together."""
        if not self.partition.startswith(FLOWER):
            check_choice("partition", self.partition, (*PARTITIONS, FLOWER + "NAME"))
        try:
            _ = self.arguments
        except tomllib.TOMLDecodeError as error:
            raise ValueError(
                f"partition-arguments = {self.partition_arguments!r}: must be name = value, with "
                "commas between them, "
                f"text in quotation marks ({error})"
            ) from None
        try:
            finite = all(map(isfinite, self.edges)) and len(self.edges) < 20
            ascending = finite and all(a < b for a, b in pairwise(self.edges))
        except ValueError:
            ascending = False
        no_noise = self.noise == "none"
        _check(
            self,
            ("source", not self.source, "must not be empty"),
            ("split", not self.split, "must not be empty"),
            (
                "partition-arguments",
                self.partition_arguments and not self.partition.startswith(FLOWER),
                f"are those of partition = '{FLOWER}NAME': leave it ''",
            ),
            (
                "split-seed",
                self.split_seed != "seed" and not self.split_seed.isdecimal(),
                "must be a whole number from 0, or seed for that of the run",
            ),
            (
                "score-on",
                self.score_on != "test"
                and not (self.validation or self.validation_split or self.part),
                "clients have no validation samples: set validation, to 0.2 say",
            ),
            (
                "group-split",
                self.group_split and self.partition != "natural",
                f"partition = {self.partition!r} may deal the rows of a person to several clients: "
                "choose natural",
            ),
            (
                "folds",
                self.folds == 1 or self.folds <= self.fold > 0,
                f"fold = {self.fold}: choose 2 folds or more, and a fold below them",
            ),
            (
                "folds",
                self.folds and (self.part or self.test),
                "the data name their own test samples: leave it 0",
            ),
            (
                "group-split",
                self.group_split and (self.part or self.test or self.validation_split),
                "the data name their own parts: leave it ''",
            ),
            (
                "noise-ratio",
                no_noise and self.noise_ratio,
                "noise = 'none': choose noise = pair or symmetric, or the ratio 0",
            ),
            (
                "noise-validation",
                no_noise and self.noise_validation,
                "noise = 'none': choose noise = pair or symmetric, or false",
            ),
            (
                "group-edges",
                self.group_edges and not self.group,
                "group = '': name the column, or leave the edges ''",
            ),
            (
                "group-edges",
                not ascending,
                "must be up to 19 ascending numbers with commas between them",
            ),
            (
                "features",
                self.image and self.features,
                f"image = {self.image!r} is given, too: leave one of them ''",
            ),
            (
                "shape",
                self.shape and not 1 <= len(self.axes) <= 3,
                "must be one to three whole numbers, for example 9,128",
            ),
            *(
                (
                    key,
                    other and other == self.split,
                    "is the split that is trained on: name another one, or leave it ''",
                )
                for key, other in (("test", self.test), ("validation-split", self.validation_split))
            ),
            *(
                (
                    key,
                    other and self.part,
                    f"part = {self.part!r} says already which samples these are: leave one ''",
                )
                for key, other in (("test", self.test), ("validation-split", self.validation_split))
            ),
            (
                "validation-split",
                self.test and self.test == self.validation_split,
                "is the split that is scored: name another one, or leave it ''",
            ),
        )

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of a partitioner of flwr-datasets, by name."""
        given = parse_toml(f"given = {{{self.partition_arguments}}}")["given"]
        return {name.replace("-", "_"): value for name, value in given.items()}

    @property
    def told_apart(self) -> tuple[str, ...]:
        """The columns that are no inputs: whose a sample is, what it is for, and those
        that are dropped.
        """
        by_client = self.partition.removeprefix(FLOWER) in BY_CLIENT
        return tuple(
            name
            for name in (
                *names_in(self.drop),
                self.natural_id,
                self.group_split,
                self.part,
                self.arguments.get("partition_by") if by_client else "",
            )
            if name
        )

    @property
    def edges(self) -> tuple[float, ...]:
        """The limits between groups."""
        return (
            tuple(float(part) for part in self.group_edges.split(",")) if self.group_edges else ()
        )

    @property
    def axes(self) -> tuple[int, ...]:
        """The numbers in ``shape``; () if they are not all positive."""
        sizes = whole_numbers(self.shape)
        return sizes if all(sizes) else ()


@dataclass(frozen=True)
class PublicOptions(Options):
    """Options of the server's unlabelled images, for methods that distil (table
    ``public``).
    """

    source: str = option(
        "auto",
        'folder or hub name, or "photos": patches of two bundled photographs; "auto": these for '
        "digits, else none",
    )
    split: str = option("train", "split of it")
    image: str = option("", 'column of the images; "": found')
    resize: int = option(
        0,
        "side of the square that images are cropped and resized to; 0: they must have the task's "
        "shape",
        low=0,
    )
    samples: int = option(0, "use only this many, evenly spaced; 0: all (4000 patches)", low=0)


@dataclass(frozen=True)
class SyntheticOptions(Options):
    """Options of the synthetic set that fedevg, fedcgan and fedcvae make (table
    ``synthetic``).
    """

    samples: int = option(100, "size of the set, as many of each class", low=1)
    steps: int = option(400, "Adam steps on the classifier that is trained on it", low=1)
    reference: str = option(
        "",
        'what the server also scores on: a split of data.source, or "clients": their pooled test '
        'samples; "": nothing',
    )


@dataclass(frozen=True)
class SiteOptions(Options):
    """What the data of sites with data of their own have in common (table ``sites``).

    Either the first two or the others; all empty: sites have no data of their own.
    """

    labels: str = option(
        "",
        'the classes, separated by commas, in the order of the model\'s outputs; "": of a table '
        "0 and 1",
    )
    shape: str = option("", "images: channels,height,width")
    columns: str = option(
        "", "tables: the features, separated by commas; a category with its values: kind=a|b|c"
    )
    client: str = option(
        "",
        'column that names the clients of a site; @file: one file per client; "": one client',
    )

    def check(self) -> None:
        """Check that the texts can be read and belong together."""
        _check(
            self,
            (
                "labels",
                not self.columns and bool(self.labels) != bool(self.shape),
                "labels and shape go together: give both for images, columns for a table",
            ),
            (
                "columns",
                self.shape and self.columns,
                "are those of a table, shape that of images: give one of them",
            ),
            (
                "client",
                self.client and not self.own,
                "is a column of sites' own data, which labels or columns describe: give these",
            ),
            (
                "labels",
                self.labels and len(self.classes) < 2,
                "must be at least two different names, with a comma between them",
            ),
            (
                "shape",
                self.shape and (len(self.image) != 3 or min(self.image) < 1),
                "must be channels,height,width, for example 1,28,28",
            ),
            (
                "columns",
                any(not name or levels == () for name, levels in self.features.items()),
                "write name or name=value|value, with commas between them",
            ),
        )

    @property
    def own(self) -> bool:
        """Whether sites have data of their own."""
        return bool(self.labels or self.columns)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, by number."""
        return tuple(dict.fromkeys(names_in(self.labels)))

    @property
    def image(self) -> tuple[int, ...]:
        """Channels, height, width."""
        return whole_numbers(self.shape)

    @property
    def features(self) -> dict[str, tuple[str, ...] | None]:
        """The columns of a table: the values of a category, ``None`` for numbers."""
        out: dict[str, tuple[str, ...] | None] = {}
        for part in self.columns.split(",") if self.columns else []:
            name, sign, levels = part.partition("=")
            named = tuple(level.strip() for level in levels.split("|") if level.strip())
            out[name.strip()] = (named if len(named) > 1 else ()) if sign else None
        return out

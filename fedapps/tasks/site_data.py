"""Tasks on sites' own data: ``data`` in a SuperNode's node configuration names a folder or file that only this site can read.

The settings ``sites.`` describe what the data of all sites have in common: the classes and the shape of images, or the columns of a
table. From this description the server builds the model without seeing a sample, and every site checks its own data before the first
round. A site is identified by its name, ``client-id``.
"""

import csv
from dataclasses import replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from algorithms.common.seeds import generator
from clients.base.data import ArrayData, ClientData
from clients.base.evaluation import CLASSIFICATION, Objective
from fedapps.data import partition as partitions
from fedapps.data.images import Images, read_named
from fedapps.data.sources import open_split
from fedapps.errors import UserError
from fedapps.models.image_nets import build_model
from fedapps.tasks.classification import Classification
from fedapps.tasks.context import RunContext
from fedapps.tasks.tabular import Table, Tabular, split_rows

Floats = NDArray[np.float64]


class SiteImages(Classification):
    """Classification of one site's images; ``source`` is "" on the server, which builds the model and sees no data."""

    def __init__(self, options: Any, context: RunContext, source: str) -> None:
        super().__init__(options, context)
        self.source = source
        for key, usual in (("noise", "none"), ("test", ""), ("validation-split", ""), ("part", "")):
            if (chosen := getattr(context.data, key.replace("-", "_"))) != usual:
                raise UserError(f"data.{key} = {chosen!r}: sites with data of their own do not have it: leave it {usual!r}")
        if context.data.standardise == "sums":
            raise UserError(
                "data.standardise = 'sums': sites with data of their own send no sums of them: choose 'client' or 'none'"
            )

    @property
    def standardise(self) -> str:
        """How inputs are brought to mean 0 and deviation 1: "none" or "client", by the site's own training samples."""
        chosen = self.context.data.standardise
        return chosen if chosen != "auto" else "client" if self.images.numbers else "none"

    @cached_property
    def images(self) -> Images:
        """The site's own images, with labels numbered in the order of the settings."""
        o, d = self.context.sites, self.context.data
        pixels, names = read_named(replace(d, source=self.source))
        if pixels.shape[1:] != o.image:
            shown = ",".join(map(str, pixels.shape[1:]))
            raise UserError(
                f"{self.source}: images are {shown}, but sites.shape = {o.shape!r}: set data.resize, or mend the data"
            )
        number = {name: place for place, name in enumerate(o.classes)}
        strange = sorted({name for name in names if name not in number})
        if strange:
            raise UserError(
                f"{self.source}: label {strange[0]!r} is none of sites.labels = {o.labels!r}: mend the data or the settings"
            )
        labels = np.array([number[name] for name in names], np.int64)
        images = Images(pixels, labels, len(o.classes), numbers=pixels.dtype == np.float32, classes=o.classes)
        return partitions.thinned(images, d)

    @cached_property
    def objective(self) -> Objective:
        """The objective of :class:`Classification`, with the class weights of this site."""
        return super().objective if self.source else CLASSIFICATION

    @property
    def groups(self) -> None:
        """None: the settings do not describe a column of groups that all sites have."""

    def natural_clients(self) -> int:
        """Return 0: the sites are the clients, and their number is known only to the run."""
        return 0

    def check(self, num_clients: int) -> None:
        """Build the model, which is all that the server can check."""
        self.initial_arrays()

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image, from the settings."""
        channels, height, width = self.context.sites.image
        return channels, height, width

    @property
    def num_outputs(self) -> int:
        """The number of classes, from the settings."""
        return len(self.context.sites.classes)

    def model_fn(self, seed: int) -> nn.Module:
        """Return a newly initialised model for the shape and classes in the settings."""
        o, chosen = self.context.sites, self.context.model
        channels, height, width = o.image
        return build_model(chosen.name, (channels, height, width), len(o.classes), seed, chosen.pretrained).to(self.device)

    def client_data(self, client_id: int | str, num_clients: int) -> ClientData:
        """Return the site's training, validation and test samples."""
        d, total = self.context.data, len(self.images.labels)
        if total < d.min_samples:
            raise UserError(f"{self.source}: {total} samples, a client needs {d.min_samples} (data.min-samples)")
        rows = partitions.split_rows(np.arange(total), client_id, self.context.seed, d.validation)
        return partitions.client_data(self.images, rows, self.scale_of(rows[0])).to(self.device)


class SiteTable(Tabular):
    """Binary classification of one site's rows; ``source`` is "" on the server."""

    def __init__(self, options: Any, context: RunContext, source: str) -> None:
        super().__init__(options, context)
        self.source = source

    @cached_property
    def columns(self) -> dict[str, list[Any]]:
        """The site's columns as they were read."""
        return read_columns(self.source, self.options.split)

    @cached_property
    def owners(self) -> NDArray[np.str_]:
        """Names of the rows' clients: digests, since the values may name people, and none of them leaves the site."""
        column = self.context.sites.client
        if column not in self.columns:
            raise UserError(f"{self.source}: no column {column!r} (sites.client): it has {', '.join(self.columns)}")
        if any(_is_missing(value) for value in self.columns[column]):
            raise UserError(f"{self.source}: column {column!r} (sites.client) has empty cells: every row needs a client")
        return np.array([blake2b(_word(value).encode(), digest_size=6).hexdigest() for value in self.columns[column]])

    def names(self) -> list[str]:
        """Return the names of the site's clients."""
        return sorted(set(self.owners.tolist()))

    @cached_property
    def rows(self) -> Table:
        """The site's own rows, as a table with a single client."""
        o, wanted, columns = self.options, self.context.sites.features, self.columns
        label = o.label or "label"
        missing = [name for name in (*wanted, label) if name not in columns]
        if missing:
            raise UserError(
                f"{self.source}: no column {missing[0]!r} (sites.columns, tabular.label): it has {', '.join(columns)}"
            )
        values: dict[str, Floats] = {}
        for name, levels in wanted.items():
            if levels is None:
                values[name] = _numbers(self.source, name, columns[name])
            else:
                values |= _dummies(self.source, name, columns[name], levels)
        found = {_word(value) for value in columns[label]}
        if not found <= {"0", "1"}:
            raise UserError(
                f"{self.source}: label {label!r} holds {', '.join(sorted(found)[:8])}: it must be 0 or 1 in every row"
            )
        y = np.array([int(_word(value)) for value in columns[label]], np.int64)
        scaled = np.array([name in wanted and wanted[name] is None for name in values])
        return Table((self.source,), tuple(values), scaled, (np.stack(list(values.values()), 1),), (y,))

    def table(self, num_clients: int) -> Table:
        """Return the site's rows."""
        return self.rows

    def natural_clients(self) -> int:
        """Return 0: the sites are the clients."""
        return 0

    def check(self, num_clients: int) -> None:
        """Build the model, which is all that the server can check."""
        self.initial_arrays()

    def model_fn(self, seed: int) -> nn.Module:
        """Return a newly initialised model with one logit for the features in the settings."""
        return build_model(self.context.model.name, (1, 1, self.num_features), 1, seed).to(self.device)

    @property
    def num_features(self) -> int:
        """The number of features, from the settings."""
        return sum(1 if levels is None or len(levels) == 2 else len(levels) for levels in self.context.sites.features.values())

    def arrays(self, client_id: int | str, num_clients: int, scale: bool = True) -> ArrayData:
        """Return the site's rows, split with a seed that depends on its name, and scaled or as they are."""
        return split_rows(self.rows_of(client_id), 0, self.options, generator(self.context.seed, "split", client_id), scale)

    def rows_of(self, client_id: int | str) -> Table:
        """Return the rows of one client, whose id is ``SITE:NAME``, or all where a site is one."""
        if not self.context.sites.client:
            return self.rows
        mine = self.owners == str(client_id).rpartition(":")[2]
        if not mine.any():
            raise UserError(f"client {client_id!r} has no rows at this site")
        return replace(self.rows, clients=(str(client_id),), x=(self.rows.x[0][mine],), y=(self.rows.y[0][mine],))

    def client_data(self, client_id: int | str, num_clients: int) -> ClientData:
        """Return the same as tensors."""
        return self.arrays(client_id, num_clients).tensors().to(self.device)


def site_task(name: str, options: Any, context: RunContext, source: str) -> SiteImages | SiteTable:
    """Return the task of a site or, if ``source`` is "", of the server. Raises ``UserError`` if settings and site do not agree."""
    if not context.sites.own:
        raise UserError(
            f"this site has data of its own ({source}), but the settings describe none: set sites.labels or sites.columns"
        )
    if name == "tabular" and context.sites.columns:
        return SiteTable(options, context, source)
    if name == "classification" and context.sites.labels:
        return SiteImages(options, context, source)
    given = "columns" if context.sites.columns else "labels"
    raise UserError(f"sites.{given} with task = {name!r}: sites have images (task = 'classification') or tables ('tabular')")


def read_columns(source: str, split: str) -> dict[str, list[Any]]:
    """Return the columns of a CSV file (empty cells as None, numbers as floats) or of a folder that ``datasets`` reads."""
    path = Path(source)
    if not path.is_file():
        table = open_split(source, split, setting="tabular.split")
        return {name: list(table[name][:]) for name in table.column_names}
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise UserError(f"{source}: no rows below the line of column names")
    if any(None in row or None in row.values() for row in rows):
        raise UserError(f"{source}: not every row has as many cells as there are columns")
    return {name: [_cell(row[name]) for row in rows] for name in rows[0]}


def _cell(text: str) -> float | str | None:
    if not text.strip():
        return None
    try:
        return float(text)
    except ValueError:
        return text.strip()


def _word(value: Any) -> str:
    """Return a value as written in the settings, for example 1.0 as 1."""
    return f"{value:g}" if isinstance(value, float) else str(int(value)) if isinstance(value, bool) else str(value)


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and np.isnan(value))


def _numbers(source: str, name: str, values: list[Any]) -> Floats:
    for value in values:
        if not _is_missing(value) and not (isinstance(value, int | float) and np.isfinite(value)):
            kind = "infinite" if isinstance(value, float) else type(value).__name__
            raise UserError(  # which the server reads: it tells the type, never a sample's value
                f"{source}: column {name!r} holds a {kind} value, which is no number: write its values in sites.columns"
            )
    return np.array([np.nan if _is_missing(value) else float(value) for value in values])


def _dummies(source: str, name: str, values: list[Any], levels: tuple[str, ...]) -> dict[str, Floats]:
    words = [None if _is_missing(value) else _word(value) for value in values]
    strange = sorted({word for word in words if word is not None and word not in levels})
    if strange:
        raise UserError(f"{source}: column {name!r} holds {strange[0]!r}, but sites.columns names {', '.join(levels)} for it")
    return {
        f"{name}={level}": np.array([np.nan if word is None else float(word == level) for word in words])
        for level in (levels[1:] if len(levels) == 2 else levels)
    }

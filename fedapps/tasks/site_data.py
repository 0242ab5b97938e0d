"""Tasks on sites' own data: ``data`` in a SuperNode's node configuration names a folder
or file that only this site can read.

The settings ``sites.`` describe what the data of all sites have in common: the classes
and the shape of images, or the columns of a table. From this description the server
builds the model without seeing a sample, and every site checks its own data before the
first round. A site is identified by its name, ``client-id``. With ``sites.client`` it
has many clients, each named by a digest (``fedapps.data.columns``).
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedapps.algorithms.common.options import names_in
from fedapps.clients.base.data import ClientData
from fedapps.data import partition as partitions
from fedapps.data.columns import Floats, Names, digest, dummies, finite, numbers_in, rows_of, words
from fedapps.data.frame import Frame, some
from fedapps.data.images import read_samples
from fedapps.data.scaling import Moments, Scale, inputs
from fedapps.data.source import FILE, SITE_CLIENT, Columns, Samples, Source
from fedapps.data.sources import open_split
from fedapps.errors import UserError
from fedapps.tasks.classification import Classification, ThreeParts
from fedapps.tasks.context import RunContext
from fedapps.tasks.tabular import Rows, Tabular

if TYPE_CHECKING:  # a site of tables needs no PyTorch for trees
    from fedapps.clients.base.evaluation import Objective

logger = logging.getLogger(__name__)


def log_account(source: str, account: Sequence[str]) -> None:
    """Log what was read of a site's data and what was left out, and why."""
    for line in account:
        logger.info("%s: %s", source, line)


def numbers(data: Frame, name: str, source: Source, remedy: str) -> Floats:
    """Return a column of numbers (N,), NaN where one is missing. Raises ``UserError``
    for other things.
    """
    if (found := numbers_in(data, name, source)) is None:
        raise UserError(
            f"{source}: column {name!r} holds {data.kind(name)}, which is no number: {remedy}"
        )
    if found[1]:
        log_account(source.name, [f"{name}: read as numbers {found[1]}"])
    return found[0]


class OnSite:
    """Mixed into the tasks on one site's own data; ``source`` is "" on the server,
    which builds the model and sees no data.
    """

    def __init__(self, options: Any, context: RunContext, source: str) -> None:
        super().__init__(options, context)  # type: ignore[call-arg]
        self.source = source
        if context.data.standardise == "sums":
            raise UserError(
                "data.standardise = 'sums': sites with data of their own send no sums of them: "
                "choose 'client'"
            )

    def natural_clients(self) -> int:
        """Return 0: the sites are the clients, and their number is known only to the
        run.
        """
        return 0

    def client_names(self, num_clients: int) -> tuple[str, ...]:
        """Return (): sites are identified by their names."""
        return ()

    def input_scale(self, num_clients: int) -> dict[str, list[Any]]:
        """Return {}: each client has its own, and the server no samples."""
        return {}

    def check(self, num_clients: int) -> None:
        """Build the model, which is all that the server can check."""
        self.initial_arrays()  # type: ignore[attr-defined]


class SiteImages(OnSite, Classification):
    """Classification of one site's images."""

    def __init__(self, options: Any, context: RunContext, source: str) -> None:
        super().__init__(options, context, source)
        for key, usual in (("noise", "none"), ("test", ""), ("validation-split", ""), ("part", "")):
            if (chosen := getattr(context.data, key.replace("-", "_"))) != usual:
                raise UserError(
                    f"data.{key} = {chosen!r}: sites with data of their own do not have it: leave "
                    f"it {usual!r}"
                )
        if context.data.class_weights and context.sites.client:
            raise UserError(
                "data.class-weights = true: would be those of a whole site, not of its clients "
                "(sites.client): set false"
            )

    @property
    def standardise(self) -> str:
        """How inputs are brought to mean 0 and deviation 1: "none" or "client", by the
        site's own training samples.
        """
        chosen = self.context.data.standardise
        return chosen if chosen != "auto" else "client" if self.samples.numbers else "none"

    @cached_property
    def samples(self) -> Samples:
        """The site's own images, with labels numbered in the order of the settings."""
        o = self.context.sites
        natural: dict[str, Any] = {
            "natural_id": o.client,
            "partition": "natural" if o.client else "iid",
        }
        read = replace(self.context.data, source=self.source, **natural)
        found = read_samples(read, source=replace(Source.of(read), client=SITE_CLIENT))
        if found.x.shape[1:] != o.image:
            shown = ",".join(map(str, found.x.shape[1:]))
            raise UserError(
                f"{self.source}: images are {shown}, but sites.shape = {o.shape!r}: set "
                "data.resize, or mend the data"
            )
        used, at = np.unique(found.labels, return_inverse=True)
        names = [found.classes[label] for label in used]
        if strange := [name for name in names if name not in o.classes]:
            raise UserError(
                f"{self.source}: label {strange[0]!r} is none of sites.labels = {o.labels!r}: mend "
                "the data or the settings"
            )
        labels = np.array([o.classes.index(name) for name in names], np.int64)[at]
        log_account(self.source, found.account)
        return replace(found, labels=labels, num_classes=len(o.classes), classes=o.classes)

    @cached_property
    def owners(self) -> Names:
        """Names of the images' clients, if the site has many."""
        clients = self.samples.clients
        assert clients is not None
        return np.array(list(map(digest, clients.names)), np.str_)[clients.codes]

    def names(self) -> list[str]:
        """Return the names of the site's clients; those with too few samples are left
        out. Raises ``UserError`` if all are.
        """
        least = self.context.data.min_samples
        found, counts = np.unique(self.owners, return_counts=True)
        large: list[str] = found[counts >= least].tolist()
        if not large:
            raise UserError(
                f"{self.source}: none of its {len(found)} clients has the {least} samples that one "
                "needs (data.min-samples)"
            )
        if less := len(found) - len(large):
            logger.warning(
                "%d of the site's %d clients have fewer than %d samples and are left out",
                less,
                len(found),
                least,
            )
        return large

    @cached_property
    def objective(self) -> "Objective":
        """The objective of :class:`Classification`, with the class weights of this
        site.
        """
        from fedapps.clients.base.evaluation import CLASSIFICATION

        return super().objective if self.source else CLASSIFICATION

    @property
    def groups(self) -> None:
        """None: the settings do not describe a column of groups that all sites have."""

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image, from the settings."""
        channels, height, width = self.context.sites.image
        return channels, height, width

    @property
    def num_outputs(self) -> int:
        """The number of classes, from the settings."""
        return len(self.context.sites.classes)

    def client_data(self, client_id: int | str, num_clients: int) -> ClientData:
        """Return training, validation and test samples of the site or, if it has many,
        of its client ``SITE:NAME``.
        """
        d = self.context.data
        samples = (
            self.samples.take(rows_of(self.owners, client_id))
            if self.context.sites.client
            else self.samples
        )
        samples = partitions.thinned(samples, d)
        total = len(samples.labels)
        if total < d.min_samples:
            raise UserError(
                f"{self.source}: {total} samples, a client needs {d.min_samples} (data.min-samples)"
            )
        rows = partitions.scored(
            partitions.split_rows(
                np.arange(total), client_id, self.context.split_seed, d.validation
            ),
            d,
        )
        scale = (
            Scale.of_sums([Moments.of(inputs(samples, rows[0]))])
            if self.standardise == "client"
            else None
        )
        return self.to_train_on(partitions.client_data(samples, rows, scale))


class SiteRows(OnSite, Rows):
    """One site's rows. Subclasses add what is to be predicted."""

    from_clients = ""

    @property
    def standardise(self) -> str:
        """How inputs are scaled: by each client's own training rows."""
        return "client"

    @property
    def given(self) -> Source:
        """The site's table."""
        return Source(self.source, self.context.data.split, client=SITE_CLIENT)

    @cached_property
    def frame(self) -> Frame:
        """The site's columns. Raises ``UserError`` unless those in the settings are
        there.
        """
        client = self.context.sites.client
        found = open_split(self.given, client == FILE)
        wanted = (*self.context.sites.features, *self.labels, *filter(None, [client]))
        if not len(found):
            raise UserError(f"{self.source}: no rows below the line of column names")
        if missing := [name for name in wanted if name not in found.columns]:
            setting = "sites.client" if missing[0] == client else "sites.columns, data.label"
            raise UserError(
                f"{self.source}: no column {missing[0]!r} ({setting}): it has {some(found.columns)}"
            )
        log_account(self.source, found.account)
        return found

    @cached_property
    def owners(self) -> Names:
        """Names of the rows' clients."""
        column = self.context.sites.client
        named = words(self.frame, column)
        if not all(named):
            raise UserError(
                f"{self.source}: column {column!r} (sites.client) has empty cells: every row needs "
                "a client"
            )
        clients, place = np.unique(np.array(named, np.str_), return_inverse=True)
        return np.array(list(map(digest, clients.tolist())), np.str_)[place]

    def names(self) -> list[str]:
        """Return the names of the site's clients."""
        return sorted(set(self.owners.tolist()))

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns to predict, from the settings."""
        return names_in(self.context.data.label) or ("label",)

    @cached_property
    def samples(self) -> Samples:
        """The site's own rows. Raises ``UserError``."""
        wanted = self.context.sites.features
        values: dict[str, NDArray[np.float32]] = {}
        for name, levels in wanted.items():
            if levels is None:
                read = numbers(self.frame, name, self.given, "write its values in sites.columns")
                values[name] = finite(read, name, self.given)
                continue
            said = words(self.frame, name)
            if strange := sorted(set(said) - {"", *levels}):
                raise UserError(
                    f"{self.source}: column {name!r} holds {strange[0]!r}, but sites.columns names "
                    f"{', '.join(levels)} for it"
                )
            place = {"": -1} | {level: number for number, level in enumerate(levels)}
            values |= dummies(name, levels, np.array([place[one] for one in said]))
        found = Columns(tuple(values), scaled=tuple(name in wanted for name in values))
        x = np.stack(list(values.values()), 1)
        return self.predicted(x[:, None, None, :], found)

    def predicted(self, x: NDArray[np.float32], columns: Columns) -> Samples:
        """Return the samples with what is to be predicted. Raises ``UserError``."""
        raise NotImplementedError

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """A row is a vector, whose features are those in the settings."""
        features = self.context.sites.features.values()
        return (
            1,
            1,
            sum(1 if levels is None or len(levels) == 2 else len(levels) for levels in features),
        )

    def split(self, client_id: Any, num_clients: int) -> ThreeParts:
        """Return the rows of the client ``SITE:NAME``, or all where a site is one
        client, split with a seed that depends on its name.
        """
        several = self.context.sites.client
        mine = rows_of(self.owners, client_id) if several else np.arange(len(self.samples.labels))
        if len(mine) < (least := self.context.data.min_samples):
            raise UserError(
                f"{self.source}: {len(mine)} rows, a client needs {least} (data.min-samples)"
            )
        return self.parts_of(mine, client_id)

    def client_data(self, client_id: int | str, num_clients: int) -> ClientData:
        """Return a client's rows as tensors."""
        return self.to_train_on(self.prepare(client_id, num_clients))  # type: ignore[arg-type]


class SiteTable(SiteRows, Tabular):
    """Classification of one site's rows: 0 and 1, or the classes in
    ``sites.labels``.
    """

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.context.sites.classes or ("0", "1")

    @property
    def num_outputs(self) -> int:
        """The number of model outputs: one logit for two classes."""
        return 1 if len(self.classes) == 2 else len(self.classes)

    @property
    def groups(self) -> None:
        """None: the settings do not describe a column of groups that all sites have."""

    def predicted(self, x: NDArray[np.float32], columns: Columns) -> Samples:
        """Return the samples with the class of each row."""
        (label,) = self.labels
        place = {name: number for number, name in enumerate(self.classes)}
        said = words(self.frame, label)
        if strange := set(said) - set(place):
            raise UserError(
                f"{self.source}: label {label!r} holds {len(strange)} values that are none of "
                f"{', '.join(self.classes)} (sites.labels): mend the data or the settings"
            )
        labels = np.array([place[one] for one in said], np.int64)
        return Samples(x, labels, len(place), self.classes, numbers=columns)

"""Task ``regression``: numbers to predict, from the rows of a table, from arrays or
from images. They are read and dealt as those of task ``classification``, but for what
goes by classes.

Nobody but a site sees its own rows: the scale of its targets is in the settings
(``regression.center``, ``regression.scale``), the same for all sites, and inputs are
scaled by each client's own training rows.

A model learns ``(y - center) / scale``, with numbers that are the same for all clients:
its outputs then mean the same everywhere. A standardisation of each client's own would
spoil that: the clients' models would agree on deviations from different means, in
different units. The numbers are given in the settings or, ``sums``, follow from n, m
and S of each client's training targets (``algorithms.common.target_errors``), which is
what a real federation would have to send for them. What a model predicts is ``center +
scale * output``.

Task ``survival`` predicts who has an event earlier, from the rows of a table with
times, some of them censored. The model's output is the logarithm of a hazard ratio
(``clients.base.survival``). A row's class is whether it is censored, by which rows are
split.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedapps.algorithms.common.options import names_in
from fedapps.algorithms.common.target_errors import CHANNELS, error_sums, pooled
from fedapps.clients.base.data import ArrayData, ClientData
from fedapps.data import generated_tables
from fedapps.data.arrays import targets_of
from fedapps.data.columns import Floats
from fedapps.data.flower_partitioners import goes_by_classes
from fedapps.data.generated_tables import DIABETES
from fedapps.data.images import read_samples
from fedapps.data.source import GENERATED, Columns, Samples
from fedapps.errors import UserError
from fedapps.strategies.base.reply_validation import LONGEST_METRIC
from fedapps.tasks.context import RunContext
from fedapps.tasks.options import SUMS, RegressionOptions, numbers_in
from fedapps.tasks.site_data import SiteRows, numbers
from fedapps.tasks.tabular import Rows, check_without_classes

if TYPE_CHECKING:  # trees on tables need no PyTorch
    from fedapps.clients.base.evaluation import Objective


#: So many targets have sums that a reply may hold.
MOST = LONGEST_METRIC // CHANNELS


@dataclass(frozen=True)
class TargetScale:
    """``center`` and ``scale`` (targets,)."""

    center: Floats
    scale: Floats

    @classmethod
    def of_clients(cls, targets: Iterable[Floats]) -> "TargetScale":
        """Return mean and deviation over all clients, given the training targets (n,
        targets) of each. Raises ``UserError``.
        """
        parts = [(len(y), error_sums(y, y)) for y in targets]
        count, sums = pooled(parts)
        constant = np.flatnonzero(~(sums[:, 3] > 0))
        if len(constant):
            raise UserError(
                f"task = 'regression': target {constant[0] + 1} has one and the same value: there "
                "is nothing to predict"
            )
        return cls(sums[:, 2], np.sqrt(sums[:, 3] / count))

    def of(self, y: Floats) -> NDArray[np.float32]:
        """Return targets as the model learns them."""
        return np.asarray((y - self.center) / self.scale, np.float32)

    def of_data(self, data: ArrayData) -> ArrayData:
        """Return a client's samples with targets as the model learns them; a split that
        is used in two places stays shared.
        """
        parts = (data.train, data.validation, data.test)
        moved = {id(part): replace(part, y=self.of(part.y)) for part in parts}
        return ArrayData(*(moved[id(part)] for part in parts))


#: Ways to deal samples that go by classes.
BY_CLASS = ("pathological", "dirichlet", "dirichlet-clients", "sorted-share")


class Regression(Rows):
    """Prediction of one or several columns, or of arrays of one size."""

    name = "regression"
    bundled = (GENERATED, DIABETES)

    def __init__(self, options: Any, context: RunContext) -> None:
        Rows.__init__(self, options, context)
        d = context.data
        check_without_classes(d, "regression predicts numbers")
        if d.partition in BY_CLASS or goes_by_classes(d):
            raise UserError(
                f"data.partition = {d.partition!r}: deals samples by class, and regression has "
                "none: choose iid, natural "
                "(data.natural-id), or one of flwr:... that goes by size or by another column"
            )

    def read(self) -> Samples:
        """Read the whole data set, with targets; the bundled ones have ``num-clients``
        clients.
        """
        d, clients = self.context.data, self.context.num_clients or 1
        if d.source == GENERATED:
            columns = generated_tables.numbers(clients)
            return generated_tables.samples_of(columns, d, "kind", "target", True)
        if d.source == DIABETES:
            columns = generated_tables.diabetes(clients)
            return generated_tables.samples_of(columns, d, "sex", "target", True)
        return read_samples(d, targets=True)

    @property
    def targets(self) -> Floats:
        """The numbers to predict (N, targets)."""
        found = self.samples.targets
        assert found is not None
        return found

    @property
    def num_outputs(self) -> int:
        """The number of targets."""
        return int(self.targets.shape[1])

    @property
    def from_clients(self) -> str:
        """What is made from the clients' data before the first round."""
        return " and ".join(filter(None, (super().from_clients, self.scale_found)))

    def target_parts(self, client: int, num_clients: int) -> tuple[Floats, Floats, Floats]:
        """Return a client's targets to train on, to validate with, to be scored on."""
        train, validation, test = (self.targets[rows] for rows in self.split(client, num_clients))
        return train, validation, test

    @property
    def groups(self) -> None:
        """None: groups are compared by their classes."""

    @property
    def usual_net(self) -> str:
        """The net that ``auto`` stands for: linear where a sample is a vector."""
        return "linear" if self.image_shape[:2] == (1, 1) else super().usual_net

    def prepare(self, client: Any, num_clients: int) -> ClientData:
        """Return a client's training, validation and test samples, with targets as the
        model learns them.
        """
        rows = self.split(client, num_clients)
        data = self.parts(rows, self.scale_for(rows[0], num_clients))
        return self.target_scale.of_data(data).tensors()

    @property
    def scale_found(self) -> str:
        """How the scale of the targets follows from the clients' data, in words; "" if
        it does not.
        """
        return (
            "center and scale of the targets (regression.center, regression.scale), from sums over "
            "the clients"
            if SUMS in (self.options.center, self.options.scale)
            else ""
        )

    @cached_property
    def target_scale(self) -> TargetScale:
        """The scale of the run's targets. Raises ``UserError``."""
        o: RegressionOptions = self.options
        found = None
        if self.scale_found:
            clients = self.context.num_clients
            found = TargetScale.of_clients(
                self.target_parts(client, clients)[0] for client in range(clients)
            )
        given = {
            name: getattr(found, name) if text == SUMS else self._given(name, text)
            for name, text in (("center", o.center), ("scale", o.scale))
        }
        return TargetScale(**given)

    def _given(self, name: str, text: str) -> Floats:
        values = numbers_in(text)
        if len(values) not in (1, self.num_outputs):
            raise UserError(
                f"regression.{name} = {text!r}: has {len(values)} numbers for {self.num_outputs} "
                "targets: give one or as many"
            )
        return np.broadcast_to(np.array(values), self.num_outputs).copy()

    @property
    def objective(self) -> "Objective":
        """The loss of the settings, and the scores in the targets' units. Raises
        ``UserError`` for more than it can report of.
        """
        if self.num_outputs > MOST:
            raise UserError(
                f"task = 'regression': {self.num_outputs} targets are more than {MOST}: name fewer"
            )
        from fedapps.clients.base.regression import regression

        found = self.target_scale
        return regression(self.options.loss, found.scale.tolist(), float(found.center[0]))


class SiteRegression(SiteRows, Regression):
    """Prediction of columns of one site's rows; ``source`` is "" on the server."""

    def __init__(self, options: Any, context: RunContext, source: str) -> None:
        SiteRows.__init__(self, options, context, source)
        for key in ("center", "scale"):
            if getattr(options, key) == SUMS:
                raise UserError(
                    f"regression.{key} = {SUMS!r}: sites with data of their own send no sums of "
                    "them: give a number (regression.center and regression.scale, the same at all "
                    "sites)"
                )

    @property
    def num_outputs(self) -> int:
        """The number of targets, from the settings."""
        return len(self.labels)

    def predicted(self, x: NDArray[np.float32], columns: Columns) -> Samples:
        """Return the samples with the numbers to predict."""
        y = np.concatenate([targets_of(self.frame, self.given, n) for n in self.labels], 1)
        return Samples(x, np.zeros(len(y), np.int64), 1, numbers=columns, targets=y)


TIME = "time"


class Survival(Rows):
    """Ranking of the rows of a table by the hazard of an event."""

    name = "survival"
    num_outputs = 1
    groups = None

    def __init__(self, options: Any, context: RunContext) -> None:
        Rows.__init__(self, options, context)
        d = context.data
        check_without_classes(d, "survival has times")
        if len(names_in(d.label)) > 1:
            raise UserError(f"data.label = {d.label!r}: must be one column, that of the times")

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns of the times and, unless all have happened, of the events."""
        return tuple(filter(None, (self.context.data.label or TIME, self.options.event)))

    def read(self) -> Samples:
        """Read the table; the generated one has ``num-clients`` clients."""
        d, event = self.context.data, self.options.event
        wanted = replace(d, label=",".join(self.labels))
        try:
            if d.source == GENERATED:
                columns = generated_tables.lifetimes(self.context.num_clients or 1)
                free = replace(wanted, drop=",".join(filter(None, (d.drop, "event"))))
                samples = generated_tables.samples_of(columns, free, "kind", wanted.label, True)
            else:
                samples = read_samples(wanted, targets=True)
        except UserError as error:  # of the second column
            said = str(error).replace(f"data.label = {event!r}", f"survival.event = {event!r}")
            raise UserError(said) from None
        if not (samples.numbers and samples.numbers.used):
            raise UserError(f"data.source = {d.source!r}: survival needs the rows of a table")
        assert samples.targets is not None
        found = self.with_times(samples, samples.targets, d.source)
        if not found.labels.any():
            raise UserError(
                f"survival.event = {event!r}: {d.source} has no event: there is nothing to learn "
                f"from {self.labels[0]!r}"
            )
        return found

    def with_times(self, samples: Samples, y: Floats, source: str) -> Samples:
        """Return samples with these times and, of two columns, events (N, 2). Raises
        ``UserError``.
        """
        time = self.labels[0]
        if not np.isfinite(y).all() or (y[:, 0] < 0).any():
            raise UserError(
                f"data.label = {time!r}: {source} has rows without a time of at least 0, or "
                "without an event: mend or drop them"
            )
        events = y[:, 1] if len(self.labels) > 1 else np.ones(len(y))
        if not np.isin(events, (0, 1)).all():
            raise UserError(
                f"survival.event = {self.options.event!r}: {source} has other values than 1 (the "
                "event happened) and 0 (censored): write these"
            )
        return replace(
            samples,
            labels=events.astype(np.int64),
            num_classes=2,
            classes=("censored", "event"),
            targets=np.stack([y[:, 0], events], 1),
        )

    def remarks(self, num_clients: int) -> list[str]:
        """Return a line for each thing that a user should know of the partition."""
        parts = [self.split(client, num_clients) for client in range(num_clients)]
        names = self.client_names(num_clients) or tuple(map(str, range(num_clients)))
        none = [n for n, p in zip(names, parts, strict=True) if not self.samples.labels[p[0]].any()]
        shown = ", ".join(none[:5]) + (", ..." if len(none) > 5 else "")
        lines = [f"survival.event: no event to learn from at {shown}"] if none else []
        return super().remarks(num_clients) + lines

    @cached_property
    def objective(self) -> "Objective":
        """The partial likelihood, and the scores."""
        from fedapps.clients.base.survival import SURVIVAL

        return SURVIVAL


class SiteSurvival(SiteRows, Survival):
    """The rows of one site's table; ``source`` is "" on the server."""

    labels = Survival.labels

    def __init__(self, options: Any, context: RunContext, source: str) -> None:
        SiteRows.__init__(self, options, context, source)

    def predicted(self, x: NDArray[np.float32], columns: Columns) -> Samples:
        """Return the samples with times and events."""
        y = [numbers(self.frame, name, self.given, "write numbers") for name in self.labels]
        samples = Samples(x, np.zeros(len(x), np.int64), 1, numbers=columns)
        return self.with_times(samples, np.stack(y, 1), self.source)

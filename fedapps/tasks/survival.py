"""Task ``survival``: who has an event earlier, from the rows of a table with times,
some of them censored. The model's output is the logarithm of a hazard ratio
(``clients.base.survival``).

A row's class is whether it is censored, by which rows are split.
"""

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedapps.algorithms.common.options import names_in
from fedapps.data import generated_tables
from fedapps.data.columns import Floats
from fedapps.data.images import read_samples
from fedapps.data.source import GENERATED, Columns, Samples
from fedapps.errors import UserError
from fedapps.tasks.context import RunContext
from fedapps.tasks.site_data import SiteRows, numbers
from fedapps.tasks.tabular import Rows, check_without_classes

if TYPE_CHECKING:
    from fedapps.clients.base.evaluation import Objective

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

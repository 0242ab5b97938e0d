"""Bounds on the updates of a round that follow from the round itself, so that they need
no setting: the median of the updates' norms, and the norm of the model.

Let n clients reply, f < n / 2 of them liars, and m be the lower median of the n norms.
At least n - f > f norms are honest; n/2 or more are at most m, and more than n/2 are at
least m, so honest norms lie on both sides: ``least honest norm <= m <= largest honest
norm``. The liars cannot move m out of that range, whatever they send.

- An update longer than ``max_relative_update`` times m is shortened to that norm (the
  clipping of Sun, Kairouz, Suresh, McMahan, "Can You Really Backdoor Federated
  Learning?", 2019, arXiv 1911.07963, with the bound of the round's median; Andrew,
  Thakkar, McMahan, Ramaswamy, NeurIPS 2021, arXiv 1905.03871, follow a quantile over
  rounds). Of a mean with shares p_k, the liars then change at most
  ``c m sum(p_k of liars)``; ``max_weight`` bounds their shares.
- An update longer than ``WILD`` times both m and the norm of the model comes from a
  client that diverged: its direction means nothing, so the reply is left out.

Running statistics of normalisation layers have other units than weights: they are
bounded in the same way, by their own median. Counters and arrays beside the model are
not touched. Nothing is promised against a majority of liars. Of two replies, m is the
shorter one: a liar can then mute the other client, but not outshout it. A single reply
is compared with the median of the last round. If most updates are zero, there is no
bound.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message
from flwr.common import log
from numpy.typing import NDArray

from algorithms.common.averaging import STATISTICS
from algorithms.common.wire import fields, read
from strategies.base.messages import arrays_of
from strategies.base.roster import ClientId

#: Multiple of the model's norm and of the median update, beyond which a client has
#: diverged. In honest runs on sizes that differ by a factor of 70, updates were at most
#: twice as long as the model and 30 times as long as the median.
WILD = 1000.0
#: The two groups of arrays, by whether they are running statistics.
GROUPS = {False: "update", True: "update of the running statistics"}


@dataclass
class RelativeBounds:
    """The bounds of a run. ``usual``: by group, the median norm of the last round that
    had one.
    """

    usual: dict[bool, float] = field(default_factory=dict)

    def apply(
        self,
        replies: Sequence[tuple[ClientId, Message, Message]],
        most: float,
        *,
        models: bool,
        beside: str = "",
    ) -> tuple[dict[int, str], list[ClientId]]:
        """Shorten the updates of (client, message sent, reply) to ``most`` medians (0:
        none); return place -> reason of the replies to leave out, and the clients whose
        updates were shortened.

        ``models``: replies are models, else the updates themselves. ``beside``: prefix
        of the arrays that are not the model's.
        """
        wild: dict[int, str] = {}
        shortened: list[ClientId] = []
        for statistic in GROUPS:
            if not any(
                _belongs(name, statistic, beside)
                for _, _, reply in replies[:1]
                for record in arrays_of(reply.content)
                for name in record
            ):
                continue
            rows = [_Update.of(*row, statistic, beside, models) for row in replies]
            usual = statistics.median_low([row.norm for row in rows]) if rows else 0.0
            if len(rows) > 1 and usual:
                self.usual[statistic] = usual
            usual = self.usual.get(statistic, 0.0) if len(rows) == 1 else usual
            for place, row in enumerate(rows):
                if not usual or row.norm <= (most or WILD) * usual or place in wild:
                    continue
                # the norm of the model is needed for outliers only
                if row.norm > WILD * max(usual, size := row.size()):
                    wild[place] = (
                        f"its {GROUPS[statistic]} has the norm {row.norm:.4g}, more than "
                        f"{WILD:g} times that of the model ({size:.4g}) and of the median "
                        f"client ({usual:.4g}): the client has probably diverged, lower its "
                        "learning rate"
                    )
                elif most and row.norm > most * usual:
                    row.shorten(most * usual)
                    shortened += [row.client] if row.client not in shortened else []
                    log(
                        WARNING,
                        "client %s: its %s is shortened from %.4g to %.4g, %g times the median of "
                        "the round (max-relative-update)",
                        row.client,
                        GROUPS[statistic],
                        row.norm,
                        most * usual,
                        most,
                    )
        return wild, shortened


@dataclass
class _Update:
    """The part of one client's update that belongs to one group."""

    client: ClientId
    start: ArrayRecord | None
    holders: list[tuple[ArrayRecord, str]]
    norm: float = 0.0

    @classmethod
    def of(
        cls,
        client: ClientId,
        sent: Message,
        reply: Message,
        statistic: bool,
        beside: str,
        models: bool,
    ) -> "_Update":
        holders = [
            (record, name)
            for record in arrays_of(reply.content)
            for name in record
            if _belongs(name, statistic, beside) and np.dtype(record[name].dtype).kind in "fc"
        ]
        out = cls(client, arrays_of(sent.content)[0] if models else None, holders)
        squares = (float(np.vdot(part, part).real) for part in map(out._part, range(len(holders))))
        out.norm = math.sqrt(sum(squares))
        return out

    def _begin(self, name: str) -> NDArray[Any] | float:
        return 0.0 if self.start is None else read(self.start[name])

    def _part(self, place: int) -> NDArray[Any]:
        record, name = self.holders[place]
        values = read(record[name])
        wide = np.complex128 if values.dtype.kind == "c" else np.float64
        return np.asarray(np.subtract(values, self._begin(name), dtype=wide))

    def size(self) -> float:
        """Return the norm of the model's arrays as they were sent."""
        squares = 0.0
        for _, name in self.holders:
            begin = np.asarray(self._begin(name), np.complex128)
            squares += float(np.vdot(begin, begin).real)
        return math.sqrt(squares)

    def shorten(self, bound: float) -> None:
        """Scale the update to the norm ``bound``."""
        for place, (record, name) in enumerate(self.holders):
            part = self._part(place) * (bound / self.norm) + self._begin(name)
            record[name] = Array(*fields(np.asarray(part, record[name].dtype)))


def _belongs(name: str, statistic: bool, beside: str) -> bool:
    return name.endswith(STATISTICS) == statistic and not (beside and name.startswith(beside))

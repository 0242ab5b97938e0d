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

from fedapps.algorithms.common.averaging import LIMIT, STATISTICS, difference
from fedapps.algorithms.contract.wire import fields, read
from fedapps.strategies.base.messages import arrays_of
from fedapps.strategies.base.named_grid import ClientId

#: Multiple of the model's norm and of the median update, beyond which a client has
#: diverged. In honest runs on sizes that differ by a factor of 70, updates were at most
#: twice as long as the model and 30 times as long as the median.
WILD = 1000.0
#: Multiple of the round's medians that bounds updates and weights of clients that are
#: not trusted: of ten equal ones, a liar keeps a quarter of the weight and the other
#: nine can outweigh its update.
HARDENED = 3.0
#: Share of a round's replies that are taken for liars in every run, where a method
#: bounds what its clients send beside a model. Such bounds act from ten replies on.
FEW = 0.1
#: The two groups of arrays, by whether they are running statistics.
GROUPS = {False: "update", True: "update of the running statistics"}

Arrays = dict[str, NDArray[Any]]
_ZERO = np.zeros(())


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
        beside: str = "",
        weights: Sequence[float] = (),
        most_weight: float = math.inf,
    ) -> tuple[dict[int, str], list[ClientId]]:
        """Shorten the updates of (client, message sent, reply) to ``most`` times the
        median of their norms (0: none); return place -> reason of the
        replies to leave out, and the clients whose updates were shortened.

        Replies are models. ``beside``: prefix of the arrays that are not the model's.
        ``weights``: with which they count before they are capped at ``most_weight``
        times their median; none: alike.
        """
        usual_weight = statistics.median_low(weights or [1.0])
        heavier = [
            max(1.0, min(weight / usual_weight, most_weight))
            for weight in weights or [1.0] * len(replies)
        ]
        wild: dict[int, str] = {}
        shortened: list[ClientId] = []
        starts: dict[int, Arrays] = {}  # messages of one phase mostly share the model
        updates = [_update(*row, starts, beside) for row in replies]
        for statistic in GROUPS:
            rows = [update[statistic] for update in updates]
            if not rows or not rows[0].arrays:
                continue
            usual = statistics.median_low([row.norm for row in rows])
            if len(rows) > 1 and usual:
                self.usual[statistic] = usual
            usual = self.usual.get(statistic, 0.0) if len(rows) == 1 else usual
            for place, row in enumerate(rows):
                bound = most * usual / heavier[place] or math.inf
                if not usual or row.norm <= min(bound, WILD * usual) or place in wild:
                    continue
                # the norm of the model is needed for outliers only
                if row.norm > WILD * max(usual, size := row.size()):
                    wild[place] = (
                        f"its {GROUPS[statistic]} has the norm {row.norm:.4g}, more than "
                        f"{WILD:g} times that of the model ({size:.4g}) and of the median "
                        f"client ({usual:.4g}): the client has probably diverged, lower its "
                        "learning rate"
                    )
                elif row.norm > bound:
                    row.shorten(bound)
                    shortened += [row.client] if row.client not in shortened else []
                    log(
                        WARNING,
                        "client %s: its %s is shortened from %.4g to %.4g, %.3g times the median "
                        "of the round (max-relative-update)",
                        row.client,
                        GROUPS[statistic],
                        row.norm,
                        bound,
                        bound / usual,
                    )
        return wild, shortened


@dataclass
class _Update:
    """The part of one client's update that belongs to one group: the record and name,
    the values and the start of each array.
    """

    client: ClientId
    arrays: list[tuple[ArrayRecord, str, NDArray[Any], NDArray[Any]]] = field(default_factory=list)
    norm: float = 0.0

    def size(self) -> float:
        """Return the norm of the model's arrays as they were sent, without the largest
        numbers, which a mask may hold.
        """
        starts = (start[np.abs(start) <= LIMIT] for *_, start in self.arrays)
        return math.sqrt(sum(_square(start, _ZERO) for start in starts))

    def shorten(self, bound: float) -> None:
        """Scale the update to the norm ``bound``."""
        for record, name, values, start in self.arrays:
            part = difference(values, start) * (bound / self.norm) + start
            record[name] = Array(*fields(np.asarray(part, values.dtype)))


def _update(
    client: ClientId,
    sent: Message,
    reply: Message,
    starts: dict[int, Arrays],
    beside: str,
) -> dict[bool, _Update]:
    """Return the update of a reply by group. ``starts``: the models sent so far, by the
    identity of their messages' contents.
    """
    content = sent.content
    if id(content) not in starts:
        starts[id(content)] = {name: read(array) for name, array in arrays_of(content)[0].items()}
    start = starts[id(content)]
    out = {statistic: _Update(client) for statistic in GROUPS}
    squares = dict.fromkeys(GROUPS, 0.0)
    for record in arrays_of(reply.content):
        for name, array in record.items():
            values = read(array)
            if values.dtype.kind in "fc" and not (beside and name.startswith(beside)):
                statistic, begin = name.endswith(STATISTICS), start.get(name, _ZERO)
                out[statistic].arrays.append((record, name, values, begin))
                squares[statistic] += _square(values, begin)
    for statistic, update in out.items():
        update.norm = math.sqrt(squares[statistic])
    return out


def _square(values: NDArray[Any], start: NDArray[Any]) -> float:
    """Return the squared norm of a difference. In float32 it is fast, and exact to six
    digits; its range does for numbers up to 1e15 in some ten million places.
    """
    if values.dtype == np.float32 and values.size <= 10_000_000:
        with np.errstate(invalid="ignore", over="ignore"):
            part = np.subtract(values, start, dtype=values.dtype).reshape(-1)
        if math.isfinite(total := float(np.vdot(part, part))):
            return total
    part = difference(values, start).reshape(-1)
    return float(np.vdot(part, part).real)

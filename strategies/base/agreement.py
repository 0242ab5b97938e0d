"""Comparison of the replies of one phase: a reply that is valid by itself can still
spoil a mean, a table or the run.

A client is skipped, with a reason, if its metric is a list where most clients send a
number (or the reverse), or if a value lies outside the range of its measure: an
accuracy is a fraction, or a percentage if most clients send percentages. Reports draw
every metric, so once a run has ``MOST_RARE`` names that few clients send, further ones
are removed from the replies. Flower's own strategies end the run when replies differ in
the names of their metrics (``validate_message_reply_consistency``). For them a metric
that most clients do not send is removed, and a client without a metric that most send
is skipped.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.common import log

from fedapps.strategies.base.messages import metrics_of, trains

Reply = tuple[int | str, Message]
#: A client's reply with its metrics.
Told = tuple[Message, Mapping[str, Any]]
#: Names of metrics that a run keeps although at most half of a phase's clients send
#: them, and names of metrics in all.
MOST_RARE, MOST_NAMES = 50, 500
#: Measures that are fractions, by the last word of a metric's name (``half-accuracy``,
#: ``eval_acc``).
FRACTIONS = {"accuracy", "acc", "auroc", "auc", "concordance", "top5", "ece", "mce"}
FRACTIONS |= {"precision", "recall", "f1"}
ROUNDING = 1e-6


@dataclass
class Agreement:
    """The names of metrics that a run has met, and the comparison of a phase's
    replies.
    """

    rare: set[str] = field(default_factory=set)
    known: set[str] = field(default_factory=set)

    def odd(self, replies: Sequence[Reply], alike: bool) -> dict[int, str]:
        """Return position -> reason for the replies to leave out; remove surplus
        metrics from the others.

        ``alike``: all replies must hold the same records and metrics.
        """
        out: dict[int, str] = {}
        with_metrics = [(reply, metrics_of(reply.content)) for _, reply in replies]
        checks: list[Callable[[list[Told]], Mapping[int, str]]] = [_odd_kinds, _out_of_range]
        if alike:
            checks.append(_odd_records)
        # one after the other: what one check skips does not count in the next
        for check in checks:
            kept = [place for place in range(len(replies)) if place not in out]
            found = check([with_metrics[place] for place in kept])
            out |= {kept[place]: reason for place, reason in found.items()}
        rest = [place for place in range(len(replies)) if place not in out]
        self._remove_surplus([(replies[place][0], *with_metrics[place]) for place in rest], alike)
        return out

    def _remove_surplus(
        self, replies: Sequence[tuple[int | str, Message, Mapping[str, Any]]], alike: bool
    ) -> None:
        senders = Counter(name for *_, metrics in replies for name in metrics)
        surplus = set()
        for name, count in sorted(senders.items()):
            few = 2 * count <= len(replies)
            if alike and count < len(replies):
                surplus.add(name)
            elif name not in self.known:
                if len(self.known) >= MOST_NAMES or (few and len(self.rare) >= MOST_RARE):
                    surplus.add(name)
                else:
                    self.known.add(name)
                    self.rare |= {name} if few else set()
        for client, reply, metrics in replies if surplus else ():
            found = sorted(surplus & metrics.keys())
            without(reply, found)
            if found:
                log(
                    WARNING,
                    "client %s: metric %r%s left out, which most clients do not send",
                    client,
                    found[0],
                    _more(found),
                )


def without(reply: Message, metrics: Iterable[str]) -> None:
    """Remove metrics from a reply."""
    for record in reply.content.values():
        for name in metrics if isinstance(record, MetricRecord) else ():
            record.pop(name, None)


def keep_common(replies: Sequence[Message]) -> None:
    """Remove the metrics that not all replies hold in the same form. Nobody is left out
    then for what others send: under differential privacy one client must not decide
    whose update counts.
    """
    metrics = [metrics_of(reply.content) for reply in replies]
    forms = [
        {(name, np.size(row[name]), type(row[name]) is list) for name in row} for row in metrics
    ]
    common = {name for name, *_ in set.intersection(*forms)} if forms else set()
    for reply, row in zip(replies, metrics, strict=True):
        without(reply, row.keys() - common)


def _odd_kinds(replies: list[Told]) -> dict[int, str]:
    """Find numbers among lists and lists among numbers."""
    table = [metrics for _, metrics in replies]
    lists = Counter(
        name for metrics in table for name, value in metrics.items() if isinstance(value, list)
    )
    if not lists:
        return {}
    senders = Counter(name for metrics in table for name in metrics)
    out = {}
    for place, metrics in enumerate(table):
        for name, value in metrics.items():
            as_list = 2 * lists[name] > senders[name]
            if isinstance(value, list) != as_list:
                said, usual = ("a number", "a list") if as_list else ("a list", "a number")
                out[place] = f"metric {name!r} is {said}, of most clients it is {usual}"
    return out


def _out_of_range(replies: list[Told]) -> dict[int, str]:
    """Find values outside the range of their measure."""
    extremes: dict[str, dict[int, tuple[float, float]]] = {}
    for place, (_, metrics) in enumerate(replies):
        for name, value in metrics.items():
            if _is_fraction(name) and value != []:
                low, high = (min(value), max(value)) if isinstance(value, list) else (value, value)
                extremes.setdefault(name, {})[place] = (float(low), float(high))
    out: dict[int, str] = {}
    for name, found in extremes.items():
        fractions = sum(high <= 1 + ROUNDING for _, high in found.values())
        top = 1 if 2 * fractions >= len(found) else 100
        for place, (low, high) in found.items():
            if low < -ROUNDING or high > top + 100 * ROUNDING:
                out.setdefault(
                    place,
                    f"metric {name!r} is {low if low < 0 else high:.6g}: must be from 0 to {top}",
                )
    return out


@lru_cache(maxsize=1000)
def _is_fraction(name: str) -> bool:
    # new-accuracy-5
    words = [word for word in re.split("[-_ ]", name.lower()) if not word.isdecimal()]
    return bool(words) and words[-1] in FRACTIONS


def _odd_records(replies: list[Told]) -> dict[int, str]:
    """Find replies that lack a record or a metric of most replies, or hold it under
    another name.
    """
    if not replies:
        return {}
    training = trains(replies[0][0])
    shapes = [_records(reply, training) for reply, _ in replies]
    (arrays, metrics), _ = Counter(shapes).most_common(1)[0]
    table = [{(name, np.size(value)) for name, value in metrics.items()} for _, metrics in replies]
    same = [row for row, shape in zip(table, shapes, strict=True) if shape == (arrays, metrics)]
    held = Counter(metric for row in same for metric in row)
    usual = {metric for metric, count in held.items() if 2 * count > len(same)}
    # where most replies lack something, require what all of them have
    if 2 * sum(usual <= row for row in same) < len(same):
        usual = set.intersection(*same)
    out = {}
    for place, (row, shape) in enumerate(zip(table, shapes, strict=True)):
        if shape != (arrays, metrics):
            out[place] = (
                f"records {[*shape[0], *shape[1]]} in the reply, in most replies "
                f"{[*arrays, *metrics]}"[:300]
            )
        elif missing := sorted(usual - row):
            out[place] = (
                f"metric {missing[0][0]!r} is missing, or not of the length that it has in most "
                "replies"
            )
    return out


def _more(names: Sequence[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def _records(reply: Message, training: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    named = reply.content.items()
    arrays = (
        tuple(name for name, record in named if isinstance(record, ArrayRecord)) if training else ()
    )
    return arrays, tuple(name for name, record in named if isinstance(record, MetricRecord))

"""A training reply as one vector of numbers in fixed point, and the sum of such vectors
as means.

The vector holds, in this order: the arrays, times the weight; the metrics, times the
sample count; the weight and the sample count. Of a reply that is a model, the arrays
are the differences from what was sent, which are smaller. Neither metrics nor sample
counts of single clients are in the clear, only the names of metrics and arrays.

With noise (``algorithms.secure.noise``) the vector holds the change of the real arrays,
shortened to the norm C, with weight 1, and no metric: changing all data of a client
changes the sum of these by at most 2 C, taking the client away by at most C. Every
client adds a share of the noise, such that the shares of the fewest honest clients that
a sum may have are together z C.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedapps.algorithms.common.averaging import VARIANCES, difference
from fedapps.algorithms.secure.fixed_point import BITS, Words, decode, encode, exponent
from fedapps.algorithms.secure.keys import digest
from fedapps.algorithms.secure.messages import Fields
from fedapps.algorithms.secure.noise import LEAST_SCALE, discrete_gaussian

Named = Mapping[str, NDArray[Any]]
#: Largest size of a metric, which has no bound of its own.
MOST_METRIC = 2.0**16
#: Standard deviations of noise for which a number has room. What is larger wraps, which
#: costs no privacy.
ROOM = 12


@dataclass(frozen=True)
class Terms(Fields):
    """What all members of a sum must do alike. ``replies``: "model", "update" or
    "sums"; ``weight``: the metric that counts samples; ``weighted``: whether it weights
    the arrays, too; ``clients``: members at most; ``bound``: on the size of an array's
    number; ``max_weight``: on the weight; ``max_norm``: on the norm of the update (0:
    none), which ``clip`` shortens; ``noise``: z, noise of the sum in units of
    ``max_norm`` (0: none); ``clear``: the metrics that each client shows before the
    server decides the weights of the arrays.
    """

    replies: str
    weight: str
    weighted: bool
    clients: int
    bound: float
    max_weight: int
    max_norm: float
    clip: bool
    noise: float = 0.0
    clear: list[str] = field(default_factory=list)

    def exponents(self) -> dict[str, tuple[int, float]]:
        """Return (exponent, largest size) of the kinds of numbers: real arrays, whole
        arrays, metrics, weights. Raises ``ValueError`` if sums do not fit.
        """
        weight = float(self.max_weight)
        real = self.max_norm * (1 + ROOM * self.noise) if self.noise else self.bound
        most = {
            "real": real * (weight if self.weighted else 1.0),
            "metric": MOST_METRIC * weight,
            "weight": weight,
        }
        kinds = {name: (exponent(self.clients, value), value) for name, value in most.items()}
        return kinds | {"whole": (0, 2.0 ** (BITS - 3 - self.clients.bit_length()))}

    def check(self) -> None:
        """Raise ``ValueError`` if the mean would be off by more than 2^-20 of the
        bound.
        """
        if self.clients * self.max_weight > 2**26:
            raise ValueError(
                f"max-weight = {self.max_weight}: with {self.clients} clients, sums of 48 bits "
                f"leave less than 20 bits to a number: choose at most {2**26 // self.clients}"
            )
        self.exponents()
        shortened = self.clip and self.max_norm and self.replies == "model"
        if self.noise and (self.clear or not shortened):
            raise ValueError("noise needs models as replies, shortened updates and no metric")

    def noise_scale(self, honest: int) -> int:
        """Return the standard deviation of a client's noise, in units of its numbers:
        the noise of ``honest`` clients is that of the sum. Raises ``ValueError`` if it
        is too small for whole numbers.
        """
        e, _ = self.exponents()["real"]
        scale = math.ceil(math.ldexp(self.noise * self.max_norm / math.sqrt(honest), e))
        if scale < LEAST_SCALE:
            raise ValueError(
                f"noise-multiplier = {self.noise:g}: too little for sums of {BITS} bits"
            )
        return scale


@dataclass
class Layout:
    """The names, shapes and types of the arrays, and the names and lengths of the
    metrics (-1: a number) in a vector.
    """

    arrays: list[tuple[str, tuple[int, ...], str]] = field(default_factory=list)
    metrics: list[tuple[str, int]] = field(default_factory=list)

    def to_text(self) -> str:
        """Return the layout as JSON."""
        return json.dumps([self.arrays, self.metrics], separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return the layout in JSON. Raises ``ValueError``."""
        try:
            arrays, metrics = json.loads(text)
            return cls(
                [(str(n), tuple(int(s) for s in shape), str(d)) for n, shape, d in arrays],
                [(str(name), int(length)) for name, length in metrics],
            )
        except (TypeError, ValueError, KeyError) as error:
            raise ValueError(f"the layout of a vector cannot be read: {error}") from None

    def size(self) -> int:
        """Return how many numbers the vector has."""
        arrays = sum(math.prod(shape) for _, shape, _ in self.arrays)
        return arrays + sum(abs(length) for _, length in self.metrics) + 2


def to_vector(
    terms: Terms,
    sent: Named,
    arrays: Named,
    metrics: Mapping[str, Any],
    decided: float | None = None,
    honest: int = 1,
) -> tuple[Words, Layout]:
    """Return a reply as words (n,), and their layout. ``sent``: the arrays of the
    message. ``decided``: the weight of the arrays, if it is not the sample count.
    ``honest``: the fewest honest clients that the sum may have. Raises ``ValueError``
    if a number is not within its bound.
    """
    kinds, layout, out = terms.exponents(), Layout(), []
    if terms.noise:
        metrics = {terms.weight: 1}
    count = float(metrics.get(terms.weight, 1))
    if not 0 < count <= terms.max_weight:
        raise ValueError(
            f"{terms.weight} must be above 0 and at most max-weight = {terms.max_weight}: raise it"
        )
    weight = count if terms.weighted else 1.0
    weight = weight if decided is None else decided
    start = sent if terms.replies == "model" else {}
    if terms.replies == "model" and {n: a.shape for n, a in arrays.items()} != {
        n: a.shape for n, a in sent.items()
    }:
        raise ValueError("the reply's arrays have other names or shapes than those that were sent")
    changes = {name: _change(name, arrays[name], start.get(name)) for name in start or arrays}
    changes = changes if terms.replies == "sums" else _within(terms, changes)
    for name, change in changes.items():
        kind = "real" if change.dtype.kind == "f" else "whole"
        e, most = kinds[kind]
        layout.arrays.append((name, arrays[name].shape, str(arrays[name].dtype)))
        if terms.noise:
            out.append(_noisy(terms, change, e, honest))
            continue
        factor = 1.0 if terms.replies == "sums" else weight
        if kind == "real" and not np.abs(change).max(initial=0) <= terms.bound:
            raise ValueError(
                f"array {name!r} changes by more than bound = {terms.bound:g}, or is not finite: "
                "it fits into no secure sum"
            )
        what = f"a number of array {name!r}, times its weight,"
        out.append(encode(factor * np.ravel(change), most, e, what))
    e, most = kinds["metric"]
    for name, value in sorted(metrics.items()):
        if name == terms.weight:
            continue
        row = np.atleast_1d(np.asarray(value, np.float64))
        # the layout tells a list of one number from a number
        layout.metrics.append((name, len(row) if isinstance(value, list) else -1))
        what = f"metric {name!r}, times {terms.weight},"
        out.append(encode(count * row, most, e, what))
    e, most = kinds["weight"]
    out.append(encode(np.array([weight, count]), most, e, terms.weight))
    return np.concatenate(out), layout


def from_sum(
    terms: Terms, layout: Layout, sent: Named, total: Words
) -> tuple[dict[str, NDArray[Any]], dict[str, Any], float]:
    """Return the arrays, the metrics and the sample count that a sum of vectors (n,)
    stands for: means, but for replies that are sums.
    """
    kinds = terms.exponents()
    weight, count = decode(total[-2:], kinds["weight"][0])
    arrays: dict[str, NDArray[Any]] = {}
    place = 0
    for name, shape, kind in layout.arrays:
        dtype = np.dtype(kind)
        part = total[place : (place := place + math.prod(shape))]
        e = kinds["real" if dtype.kind == "f" else "whole"][0]
        value = decode(part, e)
        if terms.replies != "sums":
            value = value / weight
        if terms.replies == "model":
            value = np.ravel(sent[name]).astype(np.float64) + value
        if dtype.kind != "f":
            value = np.rint(value)
        if terms.noise and name.endswith(VARIANCES):  # the noise may have made them negative
            value = np.maximum(value, 0)
        arrays[name] = value.astype(dtype).reshape(shape)
    metrics: dict[str, Any] = {}
    e = kinds["metric"][0]
    for name, length in layout.metrics:
        part = total[place : (place := place + abs(length))]
        means = (decode(part, e) / count).tolist()
        metrics[name] = means[0] if length < 0 else means
    return arrays, metrics, float(count)


def sum_fault(
    terms: Terms,
    layout: Layout,
    total: Words,
    members: int,
    decided: float | None = None,
    honest: int = 1,
) -> str:
    """Return why no ``members`` clients that keep to the terms can have the sum (n,);
    "" if they can. Each bound on a single vector is also one on the sum of them, and
    the server sees that. ``decided``: the sum of the weights, if the server decided
    them. ``honest``: as in :func:`to_vector`.
    """
    kinds, place, real, squares = terms.exponents(), 0, 0, 0.0
    e, most = kinds["weight"]
    slack = math.ldexp(members, -e)  # rounding: at most half a unit per client
    weight, count = decode(total[-2:], e)
    expected = count if terms.weighted else float(members)
    expected = expected if decided is None else decided
    if (terms.noise and abs(count - members) > slack) or not (
        0 < count <= members * most + slack and abs(weight - expected) <= 2 * slack
    ):
        return f"{terms.weight} = {count:.6g}, weight {weight:.6g}"
    units = math.ldexp(members, -kinds["real"][0])
    mass = members if terms.replies == "sums" else weight
    spread = terms.noise * terms.max_norm * math.sqrt(members / honest)  # of the noise
    largest = mass * (terms.max_norm or terms.bound) + ROOM * spread + units
    for name, shape, kind in layout.arrays:
        is_real = np.dtype(kind).kind == "f"
        e, most = kinds["real" if is_real else "whole"]
        values = decode(total[place : (place := place + math.prod(shape))], e)
        size, limit = np.abs(values).max(initial=0), largest if is_real else members * most
        if size > limit:
            return f"a number of array {name!r} is {size:.3g} (limit {limit:.3g})"
        if is_real:
            real, squares = real + values.size, squares + float(np.vdot(values, values))
    noise = spread * (math.sqrt(real) + ROOM)
    longest = mass * terms.max_norm + noise + units * math.sqrt(real)
    if terms.max_norm and math.sqrt(squares) > longest:
        return f"its norm is {math.sqrt(squares):.4g} (limit {longest:.4g})"
    e, most = kinds["metric"]
    rest = decode(total[place:-2], e)
    if np.abs(rest).max(initial=0) > members * most * (1 + 1e-9):
        return "a metric is beyond its bound"
    return ""


def _change(name: str, array: NDArray[Any], start: NDArray[Any] | None) -> NDArray[Any]:
    if array.dtype.kind not in "fiub":
        raise ValueError(f"array {name!r} is of type {array.dtype}: secure sums take real numbers")
    if array.dtype.kind == "f":
        return difference(array, 0.0 if start is None else start)
    for one in (array, start):
        if one is not None and np.abs(one.astype(np.float64)).max(initial=0) > 2.0**62:
            raise ValueError(f"array {name!r} holds a number above 2^62: it fits into no sum")
    change = array.astype(np.int64)
    return change if start is None else change - start.astype(np.int64)


def _within(terms: Terms, changes: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return an update whose norm is within the bound. Raises ``ValueError``."""
    if not terms.max_norm:
        return changes
    real = {name: change for name, change in changes.items() if change.dtype.kind == "f"}
    norm = math.sqrt(sum(float(np.vdot(part, part)) for part in real.values()))
    most = terms.max_norm
    if terms.noise:  # rounding adds at most half a unit to each number
        size = sum(part.size for part in real.values())
        most -= math.ldexp(math.sqrt(size), -terms.exponents()["real"][0])
        if most <= 0:
            raise ValueError(f"clipping-norm = {terms.max_norm:g}: too short for {size} numbers")
    if norm <= most:
        return changes
    if not terms.clip or not math.isfinite(norm):
        raise ValueError(f"the norm of the update is above {terms.max_norm:g}, or not finite")
    return changes | {name: part * (most / norm) for name, part in real.items()}


def _noisy(terms: Terms, change: NDArray[Any], e: int, honest: int) -> Words:
    """Return an array's change with its share of the noise; whole numbers stay as they
    were sent.
    """
    if change.dtype.kind != "f":
        return np.zeros(change.size, np.uint64)
    whole = np.rint(np.ldexp(np.ravel(change), e)).astype(np.int64)
    noisy = whole + discrete_gaussian(change.size, terms.noise_scale(honest))
    return np.asarray(noisy.view(np.uint64))


def content_digest(kind: str, group: str, content: Mapping[str, Any], terms: Terms) -> bytes:
    """Return the digest of all that a member is sent: a message's type ``kind``, its
    ``group`` (the round) and its records of Flower by name, and the terms. The order
    counts: models are lists for some apps.
    """
    parts: list[bytes | str | int] = [kind, group, json.dumps(terms.to_fields(), sort_keys=True)]
    for name, record in content.items():
        parts += [type(record).__name__, name, len(record)]
        for key, value in record.items():
            data = getattr(value, "data", None)
            if isinstance(data, bytes):
                parts += [key, str(value.dtype), repr(tuple(value.shape)), data]
            else:
                parts += [key, repr(value)]
    return digest("content", *parts)

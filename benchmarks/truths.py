"""Federations of which the best family of methods is known: linear-Gaussian clients.

Client k has features x ~ N(0, s_k^2 I_d) and targets y = x w_k + N(0, sigma_k^2). Let
v_k = sigma_k^2 / (s_k^2 (n - d - 1)), so that v_k I is the covariance of its least
squares estimate from n samples, and let m be the mean of all K estimates. The expected
excess of a client's squared error over sigma_k^2 is s_k^2 E||u - w_k||^2, with

    alone     u = a (its estimate):   (1 - a)^2 ||w_k||^2 + a^2 d v_k
    pooled    u = m:                  ||mean_j w_j - w_k||^2 + d sum_j v_j / K^2
    mixture   u = m + a (its estimate - m):
              (1 - a)^2 (pooled) + a^2 d v_k + 2 a (1 - a) d v_k / K
    clusters  pooled within its group
    body      w_k = B u_k with B (d, r) known:  r sigma_k^2 / (s_k^2 (n - r - 1))

a is the best one for the mean over clients. With w_k = w + tau z_k and equal clients,
pooled beats least squares alone where tau^2 < v: the threshold.

The mean of an inverse Wishart matrix, which gives n - d - 1: Mardia, Kent, Bibby,
"Multivariate Analysis", 1979, section 3.8. Mixtures in this model: Chen, Zheng, Long,
Su, "A Theorem of the Alternative for Personalized Federated Learning", 2021, arXiv
2103.01901, section 3.
"""

import csv
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedapps.algorithms.common.seeds import generator

if TYPE_CHECKING:
    from torch import nn

Floats = NDArray[np.float64]
#: Features, clients; samples of a client to train on, to validate with, to test on.
D, K, SIZES = 6, 16, (16, 16, 80)
PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class Federation:
    """Clients whose truth is known. ``weights`` (K, d), ``noise`` sigma_k (K,),
    ``scale`` s_k (K,), ``groups`` (K,), ``rank``: r of a shared body, 0 without one.
    """

    weights: Floats
    noise: Floats
    scale: Floats
    groups: NDArray[np.int64]
    rank: int = 0

    def excess(self, n: int) -> dict[str, Floats]:
        """Return the expected excess of the squared error of each client (K,) by
        family, with n training samples each.
        """
        k, d = self.weights.shape
        square = self.scale**2
        v = self.noise**2 / (square * (n - d - 1))
        own = (self.weights**2).sum(1)
        pooled = self._pooled(np.zeros(k, np.int64), v)
        a = _best((square * own).mean(), (square * d * v).mean(), 0.0)
        out = {"alone": square * ((1 - a) ** 2 * own + a**2 * d * v), "pooled": square * pooled}
        cross = d * v / k
        a = _best(*((square * part).mean() for part in (pooled, d * v, cross)))
        out["mixture"] = square * ((1 - a) ** 2 * pooled + a**2 * d * v + 2 * a * (1 - a) * cross)
        out["clusters"] = square * self._pooled(self.groups, v)
        if self.rank:
            out["body"] = self.rank * self.noise**2 / (n - self.rank - 1)
        return out

    def risks(self, n: int = SIZES[0]) -> dict[str, float]:
        """Return the mean over clients of the root of the expected squared error, by
        family.
        """
        return {
            family: float(np.sqrt(self.noise**2 + excess).mean())
            for family, excess in self.excess(n).items()
        }

    @property
    def error_of_a_mean(self) -> float:
        """The mean over clients of the deviation of the targets."""
        return float(np.sqrt(self.noise**2 + self.scale**2 * (self.weights**2).sum(1)).mean())

    def _pooled(self, groups: NDArray[np.int64], v: Floats) -> Floats:
        distance = np.empty(len(v))
        for group in np.unique(groups):
            own = groups == group
            bias = ((self.weights[own].mean(0) - self.weights[own]) ** 2).sum(1)
            distance[own] = bias + self.weights.shape[1] * v[own].sum() / own.sum() ** 2
        return distance

    def samples(self, seed: int, k: int, part: str, n: int) -> tuple[Floats, Floats]:
        """Return n samples (n, d) and targets (n,) of client k."""
        rng = generator(seed, f"truth {part}", k)
        x = self.scale[k] * rng.normal(size=(n, self.weights.shape[1]))
        return x, x @ self.weights[k] + self.noise[k] * rng.normal(size=n)

    def write(self, path: Path, seed: int, sizes: tuple[int, int, int] = SIZES) -> None:
        """Write the samples as a table with the columns client, part, x1 .. xd, y."""
        d = self.weights.shape[1]
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["client", "part", *(f"x{j + 1}" for j in range(d)), "y"])
            for k in range(len(self.weights)):
                parts = [
                    (part, *self.samples(seed, k, part, n))
                    for part, n in zip(PARTS, sizes, strict=True)
                ]
                for part, x, y in parts:
                    for row, target in zip(x.tolist(), y.tolist(), strict=True):
                        writer.writerow([f"site-{k + 1:02d}", part, *row, target])


def _best(distance: float, own: float, cross: float) -> float:
    """Return a in 0..1 with the least (1-a)^2 distance + a^2 own + 2a(1-a) cross."""
    curvature = distance + own - 2 * cross
    return float(np.clip((distance - cross) / curvature, 0, 1)) if curvature > 0 else 0.0


def _linear(rng: np.random.Generator, tau: float) -> Federation:
    """Return w_k = w + tau z_k with the noise 1; the norm of w is sqrt(d)."""
    w = rng.normal(size=D)
    weights = np.sqrt(D) * w / np.linalg.norm(w) + tau * rng.normal(size=(K, D))
    return Federation(weights, np.ones(K), np.ones(K), np.arange(K) % 2)


def _clusters(rng: np.random.Generator) -> Federation:
    one = _linear(rng, 0.0)
    signs = np.where(one.groups == 0, 1.0, -1.0)
    return replace(one, weights=signs[:, None] * one.weights)


def _shift(rng: np.random.Generator) -> Federation:
    return replace(_linear(rng, 0.0), scale=2.0 ** rng.permutation(np.linspace(-1, 1, K)))


def _wrong(rng: np.random.Generator) -> Federation:
    one = _linear(rng, 0.0)
    at = rng.permutation(K) < 2  # their targets have nothing to do with their features
    noise = np.where(at, np.sqrt(1 + (one.weights**2).sum(1)), 1.0)
    weights = np.where(at[:, None], 0.0, one.weights)
    return replace(one, weights=weights, noise=noise, groups=at.astype(np.int64))


def _null(rng: np.random.Generator) -> Federation:
    one = _linear(rng, 0.0)
    return replace(one, weights=np.zeros_like(one.weights))


def _body(rng: np.random.Generator) -> Federation:
    basis = np.linalg.qr(rng.normal(size=(D, 1)))[0]
    heads = np.sqrt(D) * rng.normal(size=(K, 1))
    return replace(_linear(rng, 0.0), weights=heads @ basis.T, rank=1)


#: The cases by name, each drawn from a generator.
TRUTHS: dict[str, Callable[[np.random.Generator], Federation]] = {
    "same": lambda rng: _linear(rng, 0.0),
    "islands": lambda rng: _linear(rng, 2.0),
    "threshold": lambda rng: _linear(rng, float(np.sqrt(1 / (SIZES[0] - D - 1)))),
    "body": _body,
    "clusters": _clusters,
    "shift": _shift,
    "wrong-labels": _wrong,
    "null": _null,
}


def truth(name: str, seed: int) -> Federation:
    """Return the federation of a case, drawn with a seed."""
    return TRUTHS[name](generator(seed, f"truth {name}"))


def body_net(input_shape: tuple[int, int, int], num_classes: int) -> "nn.Module":
    """Return a linear net with a body of one feature and a head: the net of the case
    ``body`` (``model.name = "benchmarks.truths:body_net"``).
    """
    from torch import nn  # late: the truths need no PyTorch

    return nn.Sequential(
        OrderedDict(
            flat=nn.Flatten(),
            body=nn.Linear(math.prod(input_shape), 1, bias=False),
            head=nn.Linear(1, num_classes),
        )
    )

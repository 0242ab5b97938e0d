"""Federated Frank-Wolfe: step sizes and penalties, the client step, the server step,
and convergence measures.

Clients minimise ``F(x) = (1/n) sum_i f_i(x)`` over a domain, each with its own iterate
x_i and the consensus penalty ``(lambda/2) ||x_i - x_bar||^2``; they send the atom of
each step. All functions work on one array and any domain
(``algorithms/frank_wolfe/domain.py``).

Source: Dadras, Prakhya, Yurtsever, "Federated Frank-Wolfe Algorithm", FL-NeurIPS 2022,
Algorithms 1 and 2, Theorems 1 and 2.

Buffers for model-sized intermediate results are reused from step to step: the system
takes back an array of more than 32 MB when it is freed, and pages in and
clears each new one. With a matrix of 3000 x 4000, that took half as long as the
arithmetic itself.
"""

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedapps.algorithms.common.options import check_choice, check_range
from fedapps.algorithms.frank_wolfe.domain import Array, Atom, Domain

#: How many numbers are squared at a time.
PIECE = 2**18


class _Room(threading.local):
    def __init__(self) -> None:
        self.arrays: dict[int, Array] = {}


_room = _Room()


def scratch(x: Array, y: Array, number: int = 0) -> Any:
    """Return an uninitialised array for a result of x and y; the next call with the
    same ``number`` may return it again.

    The array belongs to the calling thread. Do not refer to it after the step.
    """
    kind = np.result_type(x, y)
    held = _room.arrays.get(number)
    if held is None or held.shape != x.shape or held.dtype != kind:
        held = _room.arrays[number] = np.empty(x.shape, kind)
    return held


def distance(x: Array, y: Array) -> float:
    """Return ``||x - y||``, summed in double precision."""
    rest = np.subtract(x, y, out=scratch(x, y)).reshape(-1)
    return math.sqrt(
        float(
            sum(
                np.sum(np.square(rest[i : i + PIECE], dtype=np.float64))
                for i in range(0, rest.size, PIECE)
            )
        )
    )


SCHEDULES = ("convex", "non-convex", "stochastic")
#: The last penalty, in units of the curvature of f_i / n, if it is chosen
#: automatically.
PULL = 1.0


class Step(NamedTuple):
    """The parameters of one round: step size, penalty, the weight of a new gradient in
    the averaged one, and FedFW+'s dual step.
    """

    eta: float
    lambda_: float
    rho: float = 1.0
    dual: float = 0.0


@dataclass(frozen=True)
class Schedule:
    """Step sizes and penalties by round.

    - convex (Theorem 1): ``eta = 2/(t+1)``, ``lambda = lambda_0 sqrt(t+1)``;
    - non-convex (Theorem 2): ``eta = T^(-2/3)``, ``lambda = lambda_0 T^(1/3)`` for T =
      ``rounds``;
    - stochastic: ``eta = 9/(t+8)``, ``lambda = lambda_0 sqrt(t+8)``, ``rho =
      4/(t+7)^(2/3)``.

    With a fraction p = ``participation`` of the clients in a round, t - 1 is replaced
    by p (t - 1), the expected number of steps a client has taken: ``eta =
    2/(p(t-1)+2)``, ``lambda = lambda_0 sqrt(p(t-1)+2)``. ``offset`` is added to that
    number: the first step of the convex schedule is then 2/(offset + 2) instead of 1,
    which forgets the start.

    The dual step of FedFW+ is ``dual * eta * lambda``, or lambda_0 in every round if
    ``dual`` is 0, as in Algorithm 2. Both have the same fixed points, since y_i rests
    where ``x_i = x_bar``. Frank-Wolfe with an augmented Lagrangian converges while the
    dual step times the squared distance from consensus is of the order of ``eta^2
    lambda`` (bounded growth: Yurtsever, Fercoq, Cevher, ICML 2019, arXiv 1901.04013,
    section 3). The penalty holds that distance at the order of 1/lambda, so that
    ``eta^2 lambda^3`` is the limit: of the order ``eta lambda`` where ``eta lambda^2``
    is constant, as in the convex and the stochastic schedule. A constant step exceeds
    it, and the more the fewer clients take part.
    """

    lambda_0: float
    kind: str = "convex"
    rounds: int = 0
    participation: float = 1.0
    offset: int = 0
    dual: float = 0.0

    def __post_init__(self) -> None:
        check_range("lambda_0", self.lambda_0, 0)
        check_range("dual", self.dual, 0)
        check_choice("schedule", self.kind, SCHEDULES)
        check_range("participation", self.participation, 0, 1, open_low=True)
        if self.kind == "non-convex":
            check_range("rounds", self.rounds, 1)

    def at(self, t: int) -> Step:
        """Return the parameters of round t = 1, 2, ..."""
        rho = 1.0
        steps = self.offset + self.participation * (t - 1)
        if self.kind == "non-convex":
            eta, root = self.rounds ** (-2 / 3), self.rounds ** (1 / 3)
        elif self.kind == "stochastic":
            eta, root, rho = 9 / (steps + 9), math.sqrt(steps + 9), 4 / (steps + 8) ** (2 / 3)
        else:
            eta, root = 2 / (steps + 2), math.sqrt(steps + 2)
        penalty = self.lambda_0 * root
        return Step(eta, penalty, rho, self.dual * eta * penalty if self.dual else self.lambda_0)


def automatic_lambda_0(
    curvature: float,
    num_clients: int,
    num_steps: int,
    kind: str = "convex",
    participation: float = 1.0,
    offset: int = 0,
) -> float:
    """Return the lambda_0 with which the penalty ends at the curvature of f_i / n
    (times ``PULL``).

    The clients agree once the penalty matches the curvature of f_i / n, which pulls
    them apart. With a smaller penalty every client stays at its own solution; with a
    much larger one all stay near the start. On generated ratings, factors of 0.3 and 3
    are worse.
    """
    last = (
        Schedule(1.0, kind, max(1, num_steps), participation, offset).at(max(1, num_steps)).lambda_
    )
    return PULL * curvature / num_clients / last


def client_step(
    domain: Domain,
    x: Array,
    x_bar: Array,
    gradient: Any,
    num_clients: int,
    step: Step,
    *,
    dual: Array | None = None,
    warm: Atom | None = None,
) -> Atom:
    """Take one step of Algorithm 1, lines 3-5, on ``x`` in place and return the atom,
    which is all the server needs.

    ``gradient``: of f_i at x, not divided by n; an array or an object with ``add_to``
    (a sparse gradient). ``dual``: the term of Algorithm 2 (FedFW+), ``y_i`` less the
    mean of all y (:func:`dual_step`); ``None`` is Algorithm 1. ``warm``: the client's
    last atom. Raises ``ValueError`` as ``domain.lmo`` does, for a bad gradient; x is
    then unchanged.
    """
    pull = np.subtract(x, x_bar, out=scratch(x, x_bar))
    pull *= step.lambda_
    if dual is not None:
        pull += dual
    if hasattr(gradient, "add_to"):
        gradient.add_to(pull, 1 / num_clients)
    else:
        pull += np.multiply(gradient, 1 / num_clients, out=scratch(gradient, gradient, 1))
    atom = domain.lmo(pull, warm)
    move(x, atom, step.eta)
    return atom


def dual_step(y: Array, x: Array, x_bar: Array, size: float) -> None:
    """Set y_i to ``y_i + size (x_i - x_bar)``, in place: Algorithm 2's dual step,
    before the gradient (``Step.dual``).

    It is taken once per round, at the first local step, where x_bar is the mean of the
    clients' points. Later in the round it is not, and dual variables keep the
    difference forever (``docs/fedfw.md``).
    """
    change = np.subtract(x, x_bar, out=scratch(x, x_bar))
    change *= size
    y += change


def move(x: Array, atom: Atom, eta: float) -> None:
    """Set x to ``(1 - eta) x + eta atom``, in place."""
    x *= 1 - eta
    atom.add_to(x, eta)


def server_step(x_bar: Array, atoms: Sequence[Atom], eta: float) -> None:
    """Set x_bar to ``(1 - eta) x_bar + eta mean(atoms)``, in place: the mean of the x_i
    if every client sent its atom.
    """
    if not atoms:
        raise ValueError("no atoms: a server's step needs one from every client")
    x_bar *= 1 - eta
    for atom in atoms:
        atom.add_to(x_bar, eta / len(atoms))


def server_step_partial(
    x_bar: Array, points: Sequence[Array], atoms: Sequence[Atom], eta: float, num_clients: int
) -> None:
    """Update x_bar in place under partial participation: it stays the mean of all
    ``num_clients`` x_i, absent ones being unchanged.

    ``points``: the server's copies of the x_i of the clients that sent ``atoms``, in
    the same order; they are updated in place too, so that they stay equal to what these
    clients hold.
    """
    for point, atom in zip(points, atoms, strict=True):
        x_bar -= (eta / num_clients) * point
        atom.add_to(x_bar, eta / num_clients)
        move(point, atom, eta)


def average_gradient(average: Array, gradient: Array, rho: float) -> None:
    """Set ``average`` to ``(1 - rho) average + rho gradient``, in place: the estimator
    of the stochastic schedule.
    """
    average *= 1 - rho
    average += np.multiply(gradient, rho, out=scratch(gradient, gradient))


def duality_gap(domain: Domain, x: Array, gradient: Any) -> float:
    """Return ``<g, x - lmo(g)>``, an upper bound on F(x) - min F for convex F; 0
    exactly at stationary points.

    ``gradient``: of F at x, an array or an object with ``inner`` (a sparse gradient).
    With an iterative oracle the gap is slightly underestimated.
    """
    here = gradient.inner(x) if hasattr(gradient, "inner") else float(np.vdot(gradient, x))
    return float(here - domain.lmo(gradient).inner(gradient))

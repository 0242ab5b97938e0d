"""Weak-learning oracles: they fit a learner to a function given at a client's points,
and evaluate many learners at once.

An oracle is any object with ``fit`` and ``predict`` whose learners pack to named arrays
of a fixed shape. Here: networks fitted by the L2, the L-infinity and the Lipschitz
oracle, and ridge regression; trees are in ``algorithms.boosting.trees``.

Source: Shen, Hassani, Kale, Karbasi, "Federated Functional Gradient Boosting", AISTATS
2022, arXiv 2103.06972, appendix B, equations (20) and (21).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedapps.algorithms.boosting.fit_options import FitOptions
from fedapps.algorithms.boosting.oracle import (
    Learner as Learner,
    Oracle as Oracle,
    Target as Target,
    in_chunks,
)
from fedapps.algorithms.boosting.regression import Adam, Diverged, fit_network
from fedapps.algorithms.common.modules import widest
from fedapps.algorithms.common.options import check_choice, check_range
from fedapps.algorithms.common.steps import Eager, Runner

# The L-infinity oracle minimises the mean squared error over this fraction of the
# points, the worst ones.
WORST = 0.1


@dataclass(frozen=True)
class NetOptions:
    """Options of the network oracles. ``kind``: "l2" (least squares), "linf" (the worst
    tenth of the points), "lipschitz" (the same, and the gradients by the inputs).

    ``fit``: Adam's steps, rate and batch. ``sobolev``: weight of the gradients.
    """

    kind: str = "l2"
    fit: FitOptions = field(
        default_factory=lambda: FitOptions(steps=200, learning_rate=0.005, clip=0.0)
    )
    sobolev: float = 0.1

    def __post_init__(self) -> None:
        check_choice("oracle", self.kind, ["l2", "linf", "lipschitz"])
        check_range("sobolev", self.sobolev, 0)


class NetOracle:
    """Fits a newly initialised network; ``model_fn``: seed -> module. ``runner`` takes
    the steps of the L2 oracle.
    """

    def __init__(
        self, model_fn: Callable[[int], nn.Module], options: NetOptions | None = None
    ) -> None:
        self.model_fn, self.options = model_fn, options or NetOptions()
        self.runner: Runner = Eager
        if self.options.kind == "l2":
            #: Takes the steps compiled; a client uses it as the ``runner`` if its
            #: message asks for that.
            self.compiler: Runner | None = None
        self.fitted = model_fn(0)  # what a fit works in: compiled steps belong to a module
        self.module = model_fn(0).eval()  # a template: all networks have its architecture
        for parameter in self.module.parameters():
            parameter.requires_grad_(False)

    def fit(self, x: Tensor, target: Target, rng: np.random.Generator) -> Learner:
        """Return the parameters and buffers of a network fitted to the target."""
        module = self.fitted
        module.load_state_dict(self.model_fn(int(rng.integers(2**62))).state_dict())
        if self.options.kind == "l2":
            fit_network(module, x, target.values, self.options.fit, rng, self.runner)
        else:
            self._fit_worst(module, x, target, rng)
        return {
            name: tensor.detach().cpu().numpy().copy()
            for name, tensor in module.state_dict().items()
        }

    def compiled(self, wanted: bool) -> None:
        """Set whether the steps of fits are compiled."""
        self.runner = (getattr(self, "compiler", None) if wanted else None) or Eager

    def predict(self, learners: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the values (m, n, outputs) of m networks, evaluated in parallel."""

        def one(state: dict[str, Tensor], points: Tensor) -> Tensor:
            values: Tensor = functional_call(self.module, state, (points,))
            return values

        def some(states: Mapping[str, Tensor], points: Tensor) -> Tensor:
            outputs: Tensor = torch.vmap(one, in_dims=(0, None))(dict(states), points)
            return outputs

        values: Tensor = in_chunks(some, learners, x, widest(self.module, x))
        return values

    def _fit_worst(
        self, module: nn.Module, x: Tensor, target: Target, rng: np.random.Generator
    ) -> None:
        """Minimise the mean squared error over the worst points (a smoothed maximum),
        with "lipschitz" also that of the gradients.
        """
        function = target.function if self.options.kind == "lipschitz" else None
        if self.options.kind == "lipschitz" and function is None:
            raise ValueError(
                "oracle = 'lipschitz' needs the target as a function, which only ffgb-l has: "
                "choose l2 or linf"
            )
        options, module = self.options.fit, module.train()
        parameters = [p for p in module.parameters() if p.requires_grad]
        adam = Adam(options.weight_decay, options.clip)
        state = adam.state([p.detach() for p in parameters])
        worst = max(1, round(WORST * len(x)))
        loss = torch.zeros(())
        for step in range(options.steps or options.epochs):
            loss = (module(x) - target.values).square().sum(1).topk(worst).values.mean()
            if function is not None:
                points = points_between(x, options.batch_size, rng)
                loss = loss + self.options.sobolev * gradient_gap(module, function, points, rng)
            adam.descend(
                state,
                list(torch.autograd.grad(loss, parameters, materialize_grads=True)),
                options.learning_rate,
                step + 1.0,
            )
        if not all(bool(torch.isfinite(p).all()) for p in [loss, *parameters]):
            raise Diverged(
                f"the fit diverged (loss {loss.item():g} at learning-rate = "
                f"{options.learning_rate:g}): lower it"
            )


def points_between(x: Tensor, count: int, rng: np.random.Generator) -> Tensor:
    """Return ``count`` random points on the segments between random pairs of the points
    x (n, ...).
    """
    i, j = (torch.from_numpy(rng.integers(len(x), size=count)).to(x.device) for _ in range(2))
    share = torch.from_numpy(rng.random(count)).to(x).reshape(-1, *[1] * (x.ndim - 1))
    return torch.lerp(x[i], x[j], share)


def gradient_gap(
    module: nn.Module, function: Callable[[Tensor], Tensor], x: Tensor, rng: np.random.Generator
) -> Tensor:
    """Return the mean over x of ``||v' (D function - D module)||^2``, v ~ N(0, I):
    unbiased for that of the whole Jacobians.
    """
    points = x.detach().requires_grad_()
    outputs = module(points)
    v = torch.from_numpy(rng.normal(size=outputs.shape[1])).to(outputs)
    wanted = torch.autograd.grad((function(points) @ v).sum(), points)[0]
    jacobian = torch.autograd.grad((outputs @ v).sum(), points, create_graph=True)[0]
    return (wanted - jacobian).flatten(1).square().sum(1).mean()


class RidgeOracle:
    """L2 oracle in closed form: ridge regression with an unpenalised intercept."""

    def __init__(self, penalty: float = 1.0) -> None:
        self.penalty = penalty

    def fit(self, x: Tensor, target: Target, rng: np.random.Generator) -> Learner:
        """Return the arrays ``weight`` (features, outputs) and ``bias`` (outputs,)."""
        points, values = x.flatten(1).double(), target.values.double()
        x0, y0 = points.mean(0), values.mean(0)
        centred = points - x0
        gram = centred.T @ centred + self.penalty * torch.eye(
            points.shape[1], dtype=torch.float64, device=x.device
        )
        weight = torch.linalg.solve(gram, centred.T @ (values - y0))
        bias = y0 - x0 @ weight
        if not bool(torch.isfinite(weight).all()):
            raise Diverged(
                "ridge regression gave values that are not finite: choose ridge > 0, or check "
                "the inputs"
            )
        return {"weight": weight.float().cpu().numpy(), "bias": bias.float().cpu().numpy()}

    def predict(self, learners: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return ``x weight + bias`` (m, n, outputs) of m learners."""
        return torch.matmul(x.flatten(1), learners["weight"]) + learners["bias"][:, None]


def combined(oracle: Oracle, learners: list[Learner]) -> Callable[[Tensor], Tensor]:
    """Return the sum of the learners as a function of the points; differentiable if the
    learners are.
    """

    def values(x: Tensor) -> Tensor:
        stacks = {
            name: torch.tensor(np.stack([h[name] for h in learners]), device=x.device)
            for name in learners[0]
        }
        total: Tensor = oracle.predict(stacks, x).sum(0)
        return total

    return values

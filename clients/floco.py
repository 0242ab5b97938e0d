"""Floco's client: trains the corners of a simplex of heads, and is scored at its point;
source and contract: ``strategies/floco.py``.
"""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedapps.algorithms.common.steps import Problem
from fedapps.algorithms.contract.sent import FlocoSent
from fedapps.clients.base.scores import as_global
from fedapps.clients.base.training import Arrays, Config, get_arrays, set_arrays, trainable
from fedapps.clients.families.personal_model import PersonalClient
from fedapps.clients.steps.sgd import descent


class FlocoClient(PersonalClient):
    """Trains at another head of the simplex with each mini-batch. After an evaluation
    it stores the model at its point, for exports.
    """

    kept_as = "floco"
    whole = MappingProxyType(FlocoSent(1, [], 0.0).to_config())
    reads = (FlocoSent,)
    differentiates_surrogate = True
    needs_all_steps = ""

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, dict[str, Any]]:
        """Return the trained body and corners."""
        sent, size = FlocoSent.from_config(config), len(self.model.state_dict())
        set_arrays(self.model, mixed(parameters, size, sent, sent.point))
        before = self.before(config)
        set_arrays(self.model, parameters[:size])
        simplex = Simplex(self.model, parameters[size:], sent)
        tensors = [p.detach() for p in trainable(simplex).values()]

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return self.objective.loss(simplex(x), y)

        sgd, rate = self.sgd(config)
        problem = Problem(simplex, loss, self.surrogate(config))
        mean_loss = self.run(*descent(sgd, tensors, rate), config, problem=problem)
        others = [w.detach().cpu().numpy() for w in simplex.others]
        return (
            [*get_arrays(self.model), *others],
            len(self.data.train),
            {"loss": mean_loss, **before},
        )

    def evaluate(self, parameters: Arrays, config: Config) -> tuple[float, int, dict[str, Any]]:
        """Evaluate the head at the client's point, and the one at the centre as
        ``global-...``.
        """
        sent, size = FlocoSent.from_config(config), len(self.model.state_dict())
        own = mixed(parameters, size, sent, None)
        set_arrays(self.model, own)
        scores = centre = self.score(self.data.test)
        if sent.point:
            own = mixed(parameters, size, sent, sent.point)
            set_arrays(self.model, own)
            scores = self.score(self.data.test)
        if sent.at:
            self.store.save(self.kept_as, own, config)
        return scores["loss"], len(self.data.test), {**scores, **as_global(centre)}


def mixed(parameters: Arrays, size: int, sent: FlocoSent, point: Sequence[float] | None) -> Arrays:
    """Return the arrays of the net (``size``) with the head at a point of the simplex,
    or at its centre.
    """
    arrays, count = parameters[:size], len(sent.at)
    for i, place in enumerate(sent.at):
        corners = np.stack([arrays[place], *parameters[size + i :: count]])
        weights = np.asarray(point or [1 / sent.corners] * sent.corners)
        arrays[place] = np.tensordot(weights, corners, 1).astype(corners.dtype)
    return arrays


class Simplex(nn.Module):
    """``net``, whose head is the first corner, and the ``others``: a forward pass draws
    a head near the client's point, or anywhere.
    """

    def __init__(self, net: nn.Module, others: Arrays, sent: FlocoSent) -> None:
        super().__init__()
        names, device = list(net.state_dict()), next(net.parameters()).device
        self.net = net
        self.others = nn.ParameterList(torch.tensor(w, device=device) for w in others)
        named, at = dict(net.named_parameters()), [names[place] for place in sent.at]
        #: The corners of each array of the head.
        self.heads = {n: [named[n], *self.others[i :: len(at)]] for i, n in enumerate(at)}
        self.point, self.radius = torch.tensor(sent.point or [], dtype=torch.float64), sent.radius
        self.corners = sent.corners

    def draw(self) -> Tensor:
        """Return the weights (M,) of the corners, from torch's generator of the CPU."""
        far = torch.empty(self.corners, dtype=torch.float64).exponential_()
        far /= far.sum()
        if not len(self.point):
            return far
        way = far - self.point
        most = float(torch.rand(()) * self.radius / way.abs().sum().clamp(min=1e-12))
        return self.point + min(most, 1.0) * way

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs with the drawn head."""
        weights = self.draw().tolist()
        heads = {
            name: sum(a * w for a, w in zip(weights, corners, strict=True))
            for name, corners in self.heads.items()
        }
        outputs: Tensor = functional_call(self.net, heads, (x,))
        return outputs

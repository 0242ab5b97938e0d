"""Methods that change the gradients of a training loop of your own: FedProx, SCAFFOLD,
FedDyn.

Sources and equations: ``strategies/fedprox.py``, ``strategies/scaffold.py``,
``strategies/feddyn.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fedapps.algorithms.common.prefixes import within
from fedapps.algorithms.contract.sent import ProximalSent
from fedapps.clients.feddyn import FedDynClient
from fedapps.clients.fedprox import FedProxClient
from fedapps.clients.loops.base import Loop, Named
from fedapps.clients.loops.hooks import add, once
from fedapps.clients.scaffold import ScaffoldClient

CONTROL = "control."


@dataclass
class Reach:
    """How far a gradient of 1 in every step moves a parameter: ``length`` (``K eta`` of
    plain SGD), after ``steps`` steps; ``velocity`` of the momentum buffer.
    """

    length: float = 0.0
    steps: int = 0
    velocity: float = 0.0

    def step(self, options: Mapping[str, Any]) -> None:
        """Add a step of SGD with these options, as torch takes it."""
        beta = options.get("momentum", 0)
        fresh = 1.0 if self.steps == 0 else 1 - options.get("dampening", 0)
        self.velocity = beta * self.velocity + fresh
        moved = (
            1.0
            if not beta
            else 1 + beta * self.velocity
            if options.get("nesterov")
            else self.velocity
        )
        self.length += (-1 if options.get("maximize") else 1) * float(options["lr"]) * moved
        self.steps += 1


class FedProxLoop(Loop):
    """FedProx: adds the gradient of ``(mu/2) ||w - w_sent||^2``. mu is ``proximal-mu``
    of the configuration.
    """

    kind = FedProxClient
    needs = (ProximalSent,)


class FedDynLoop(Loop):
    """FedDyn: adds the gradient of ``- <g_i, w> + (alpha/2) ||w - w_sent||^2``;
    afterwards ``g_i <- g_i - alpha (w - w_sent)``.
    """

    kind = FedDynClient


class ScaffoldLoop(Loop):
    """SCAFFOLD: steps along ``g - c_i + c``; afterwards ``c_i+ = c_i - c + d`` with the
    mean direction ``d = (x - y_i) / (K eta)``, and ``c + c_i+ - c_i = d`` is sent (the
    paper's option II).

    ``K eta`` is how far a gradient of 1 in every step would have moved a parameter: the
    loop follows SGD's learning rate, momentum, dampening and Nesterov steps. For other
    optimisers, whose steps are not multiples of gradients, d is the mean gradient plus
    ``c - c_i``; that is logged, since the paper promises nothing for it.
    """

    kind = ScaffoldClient

    def load(self) -> None:
        """Write the model into the module; keep the control variates aside."""
        self.c = within(CONTROL, self.sent)
        self.sent = {name: t for name, t in self.sent.items() if not name.startswith(CONTROL)}
        self.reported: Named = {}
        super().load()

    def fit(self, epochs: int) -> Any:
        """Train with the correction; store the new c_i. Raises ``ValueError`` if the
        server sends no control variates.
        """
        if not self.c:
            raise ValueError(
                "no control variates in the message: the server's strategy must be Scaffold"
            )
        kept = self.client.store.load("control", self.config, before=True)
        own = (
            self.client.like(self.c, kept)
            if kept
            else {name: torch.zeros_like(t) for name, t in self.c.items()}
        )
        correction = {name: c - own[name] for name, c in self.c.items()}
        start = {name: p.detach().cpu().clone() for name, p in self.parameters().items()}
        reach: dict[str, Reach] = {}
        sums: Named = {}

        def change(parameters: Mapping[str, nn.Parameter], options: Mapping[str, Any]) -> None:
            for name, p in parameters.items():
                assert p.grad is not None
                reach.setdefault(name, Reach()).step(options)
                if not issubclass(options["optimiser"], torch.optim.SGD):
                    sums[name] = sums[name] + p.grad if name in sums else p.grad.clone()
                add(p, correction[name])

        result = self.call(self.model, epochs, change)
        if sums:
            once(
                "SCAFFOLD is made for SGD: with another optimiser its control variates are mean "
                "gradients, and it can end below FedAvg. Compare with FedAvg, or use SGD."
            )
        ends = {name: p.detach().cpu() for name, p in self.parameters().items()}
        direction = dict(self.c)  # of what does not move: c_i stays
        for name, way in reach.items():
            if name in sums:
                direction[name] = sums[name].cpu() / way.steps + correction[name]
            elif way.length:
                direction[name] = (start[name] - ends[name]) / way.length
        new = [(own[name] - c + direction[name]).numpy() for name, c in self.c.items()]
        self.client.store.save("control", new, self.config)
        self.reported = {CONTROL + name: d for name, d in direction.items()}
        return result

    def arrays(self) -> Named:
        """Return y_i followed by c + c_i+ - c_i."""
        if not self.reported:
            raise ValueError("reply before train: SCAFFOLD has nothing to report")
        return {**super().arrays(), **self.reported}

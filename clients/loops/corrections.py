"""Methods that change the gradients of a training loop of your own: FedProx, SCAFFOLD,
FedDyn.

Sources and equations: ``strategies/fedprox.py``, ``strategies/scaffold.py``,
``strategies/feddyn.py``.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from algorithms.common.prefixes import within
from clients.feddyn import FedDynClient
from clients.fedprox import FedProxClient
from clients.loops.base import Loop, Named, add
from clients.scaffold import ScaffoldClient

CONTROL = "control."


class FedProxLoop(Loop):
    """FedProx: the gradient of ``(mu/2) ||w - w_sent||^2`` is added, mu being
    ``proximal-mu`` of the configuration.
    """

    kind = FedProxClient


class FedDynLoop(Loop):
    """FedDyn: the gradient of ``- <g_i, w> + (alpha/2) ||w - w_sent||^2`` is added;
    afterwards ``g_i <- g_i - alpha (w - w_sent)``.
    """

    kind = FedDynClient


class ScaffoldLoop(Loop):
    """SCAFFOLD: steps along ``g - c_i + c``; afterwards c_i is the mean of the round's
    gradients g, and ``c + c_i+ - c_i`` is sent.

    For plain SGD that is the paper's option II, ``c_i+ = c_i - c + (x - y_i) / (K
    eta)``, which ``ScaffoldClient`` computes, without knowing K or eta; it also holds
    for momentum, for a rate that changes within the round and for other optimisers.
    Weight decay of the optimiser is not part of g.
    """

    kind = ScaffoldClient

    def load(self) -> None:
        """Write the model into the module; set the control variates apart."""
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
        sums: Named = {}
        steps: dict[str, int] = {}

        def change(parameters: Mapping[str, nn.Parameter], options: Mapping[str, Any]) -> None:
            for name, p in parameters.items():
                assert p.grad is not None
                sums[name] = sums[name] + p.grad if name in sums else p.grad.clone()
                steps[name] = steps.get(name, 0) + 1
                add(p, correction[name])

        result = self.call(self.model, epochs, change)
        new = {name: sums[name].cpu() / steps[name] if name in sums else own[name] for name in own}
        self.client.store.save("control", [t.numpy() for t in new.values()], self.config)
        self.reported = {CONTROL + name: c + new[name] - own[name] for name, c in self.c.items()}
        return result

    def arrays(self) -> Named:
        """Return y_i followed by c + c_i+ - c_i."""
        if not self.reported:
            raise ValueError("reply before train: SCAFFOLD has nothing to report")
        return {**super().arrays(), **self.reported}

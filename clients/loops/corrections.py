"""Methods that change the gradients of a training loop of your own: FedProx, SCAFFOLD,
FedDyn.

Sources and equations: ``strategies/fedprox.py``, ``strategies/scaffold.py``,
``strategies/feddyn.py``.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from algorithms.common.prefixes import within
from clients.loops.base import Loop, Named, add

CONTROL = "control."


class FedProxLoop(Loop):
    """FedProx: the gradient of ``(mu/2) ||w - w_sent||^2`` is added, mu being
    ``proximal-mu`` of the configuration.
    """

    def train(
        self, function: Callable[..., Any], loader: Any, epochs: int, *args: Any, **kwargs: Any
    ) -> Any:
        """Train with the proximal term."""
        mu, start = float(self.config["proximal-mu"]), self.state()

        def change(parameters: Mapping[str, nn.Parameter], rate: float) -> None:
            for name, p in parameters.items():
                add(p, p.detach() - start[name].to(p), mu)

        return self.call(function, self.model, loader, epochs, args, kwargs, change)


class ScaffoldLoop(Loop):
    """SCAFFOLD: steps along ``g - c_i + c``; afterwards c_i is the mean of the round's
    gradients g, and ``c + c_i+ - c_i`` is sent.

    For plain SGD that is the paper's option II, ``c_i+ = c_i - c + (x - y_i) / (K
    eta)``, without knowing K or eta; it also holds for momentum, for a rate that
    changes within the round and for other optimisers. Weight decay of the optimiser is
    not part of g.
    """

    def load(self, sent: Named) -> None:
        """Write the model into the module; set the control variates apart."""
        self.c = within(CONTROL, sent)
        self.sent = {name: t for name, t in sent.items() if not name.startswith(CONTROL)}
        self.reported: Named = {}
        super().load(self.sent)

    def train(
        self, function: Callable[..., Any], loader: Any, epochs: int, *args: Any, **kwargs: Any
    ) -> Any:
        """Train with the correction; store the new c_i. Raises ``ValueError`` if the
        server sends no control variates.
        """
        if not self.c:
            raise ValueError(
                "no control variates in the message: the server's strategy must be Scaffold"
            )
        own = self.kept("control", self.c, before=True) or {
            name: torch.zeros_like(t) for name, t in self.c.items()
        }
        correction = {name: c - own[name] for name, c in self.c.items()}
        sums: Named = {}
        steps: dict[str, int] = {}

        def change(parameters: Mapping[str, nn.Parameter], rate: float) -> None:
            for name, p in parameters.items():
                assert p.grad is not None
                sums[name] = sums[name] + p.grad if name in sums else p.grad.clone()
                steps[name] = steps.get(name, 0) + 1
                add(p, correction[name])

        result = self.call(function, self.model, loader, epochs, args, kwargs, change)
        new = {name: sums[name].cpu() / steps[name] if name in sums else own[name] for name in own}
        self.keep("control", new)
        self.reported = {CONTROL + name: c + new[name] - own[name] for name, c in self.c.items()}
        return result

    def arrays(self) -> Named:
        """Return y_i followed by c + c_i+ - c_i."""
        if not self.reported:
            raise ValueError("reply before train: SCAFFOLD has nothing to report")
        return {**self.state(), **self.reported}


class FedDynLoop(Loop):
    """FedDyn: the gradient of ``- <g_i, w> + (alpha/2) ||w - w_sent||^2`` is added;
    afterwards ``g_i <- g_i - alpha (w - w_sent)``.
    """

    def train(
        self, function: Callable[..., Any], loader: Any, epochs: int, *args: Any, **kwargs: Any
    ) -> Any:
        """Train with both terms; store the new g_i."""
        alpha = float(self.config["feddyn-alpha"])
        start: dict[str, Tensor] = {
            name: p.detach().clone() for name, p in self.parameters().items()
        }
        linear = self.kept("feddyn", start, before=True) or {
            name: torch.zeros_like(t) for name, t in start.items()
        }

        def change(parameters: Mapping[str, nn.Parameter], rate: float) -> None:
            for name, p in parameters.items():
                add(p, p.detach() - start[name].to(p), alpha)
                add(p, linear[name], -1.0)

        result = self.call(function, self.model, loader, epochs, args, kwargs, change)
        ends = self.parameters()
        self.keep(
            "feddyn",
            {
                name: linear[name] - alpha * (ends[name].detach().cpu() - s.cpu())
                for name, s in start.items()
            },
        )
        return result

"""Methods with a personal model around a training loop of your own: Ditto, FedPer,
LG-FedAvg, FedRep, APFL, SuPerFed.

Sources and equations: the strategies of these names. In evaluation ``model`` is the
personal one, or their mixture.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message
from torch import Tensor, nn
from torch.func import functional_call

from fedapps.algorithms.contract.sent import APFLTraining, DittoSent, ProximalSent, SuPerFedTraining
from fedapps.algorithms.personal.mixing import cosine_squared_gradient, layer_of
from fedapps.clients.apfl import APFLClient
from fedapps.clients.base.store import Store
from fedapps.clients.base.training import Arrays
from fedapps.clients.ditto import DittoClient
from fedapps.clients.loops.base import Loop
from fedapps.clients.loops.hooks import add
from fedapps.clients.partial_sharing import FedRepClient, PartialClient
from fedapps.clients.superfed import SuPerFedClient


class DittoLoop(Loop):
    """Ditto: trains the model that was sent, then a personal one with the gradient of
    ``(mu/2) ||v - w_sent||^2`` added. It does not choose mu.
    """

    kind = DittoClient

    def load(self) -> None:
        """Load the model that was sent; keep one personal model."""
        super().load()
        self.config.pop(DittoSent.key("choose"), None)

    def take_own(self) -> None:
        """Take the personal model, if there is one."""
        self.client.take_own(self.config)


class PartialLoop(Loop):
    """FedPer and LG-FedAvg: this client keeps the arrays that the server does not
    send.
    """

    kind = PartialClient

    def load(self) -> None:
        """Join the arrays that were sent and those that are kept. Before the first
        training, the own part is that of a fresh model.
        """
        sent = [self.sent[name].numpy() for name in self.arrays()]
        self.client.assemble(sent, self.config, before=not self.evaluates())


class FedRepLoop(PartialLoop):
    """FedRep: trains the own part with the shared one fixed, then the shared part with
    the own one fixed.
    """

    kind = FedRepClient


# --- two models in one module ---------------------------------------------------------


class _Pair(nn.Module):
    """The module ``net`` and a second set ``own`` of its parameters. Optimisers see
    both; the outputs are those of a mixture.
    """

    def __init__(self, net: nn.Module, own: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.net = net
        self.names, self.moved = list(own), False
        self.own = nn.ParameterList([nn.Parameter(tensor.clone()) for tensor in own.values()])

    def notice(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Note whether an optimiser moves the second set."""
        self.moved |= any(name.startswith("own.") for name in parameters)

    def pairs(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        """Return (of the net, own) for every parameter."""
        of_net = dict(self.net.named_parameters())
        return [(of_net[name], own) for name, own in zip(self.names, self.own, strict=True)]

    def at(self, tensors: list[Tensor], args: Any, kwargs: Any) -> Any:
        """Return the output of the net with these parameters."""
        return functional_call(self.net, dict(zip(self.names, tensors, strict=True)), args, kwargs)

    def owned(self) -> Arrays:
        """Return the second set. Raises ``ValueError`` if no optimiser had it."""
        if not self.moved:
            raise ValueError(
                "the optimiser does not have the personal model: make it in the function that "
                "trains, from the module that this gets (torch.optim.SGD(model.parameters(), ...))"
            )
        return [own.detach().cpu().numpy() for own in self.own]


class _Twice:
    """A loader whose every batch comes twice."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            yield batch
            yield batch

    def __len__(self) -> int:
        return 2 * len(self.loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


class _Turns(_Pair):
    """APFL: the first of two equal batches trains the net (w), the second the mixture
    with v, at the w before the first.
    """

    def __init__(
        self, net: nn.Module, own: Mapping[str, Tensor], alpha: float, adaptive: bool
    ) -> None:
        super().__init__(net, own)
        self.alpha, self.adaptive, self.of_net = alpha, adaptive, False
        self.before: list[Tensor] = []
        self.weight = torch.tensor(alpha)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not self.training:
            return self.net(*args, **kwargs)
        self.of_net = not self.of_net
        if self.of_net:
            self.before = [w.detach().clone() for w, _ in self.pairs()]
            return self.net(*args, **kwargs)
        self.weight = torch.tensor(
            self.alpha, device=self.before[0].device, requires_grad=self.adaptive
        )
        return self.at(
            [w + self.weight * (v - w) for w, v in zip(self.before, self.own, strict=True)],
            args,
            kwargs,
        )

    def change(self, parameters: Mapping[str, nn.Parameter], options: Mapping[str, Any]) -> None:
        """Let only one of the two models step, in turn. If alpha is learned, descend in
        it once.
        """
        self.notice(parameters)
        moving = self.of_net or bool(self.alpha)
        for name, p in parameters.items():
            if name.startswith("net.") != self.of_net or not moving:
                p.grad = None
        if not self.of_net and self.adaptive and self.weight.grad is not None:
            self.alpha = min(1.0, max(0.0, self.alpha - options["lr"] * float(self.weight.grad)))
            self.adaptive = False


class APFLLoop(Loop):
    """APFL: trains w as FedAvg does, and a personal v at the mixture ``alpha v + (1 -
    alpha) w``, which is scored.

    Every batch comes twice, once for each model. So ``function`` takes twice as many
    steps and returns the mean loss of both models. It must take one forward pass and
    one step per batch.
    """

    kind = APFLClient

    def fit(self, epochs: int) -> Any:
        """Train both; store v and alpha."""
        v, alpha = self.client.own(self.config, before=True)
        own = dict(zip(self.parameters(), v, strict=True))
        pair = _Turns(self.model, own, alpha, APFLTraining.from_config(self.config).adaptive)
        result = self.call(pair, epochs, pair.change, _Twice(self.loader))
        kept = [*pair.owned(), np.array([pair.alpha])]
        self.client.store.save(self.client.kept_as, kept, self.config)
        return result

    def take_own(self) -> None:
        """Take the mixture."""
        self.client.take_own(self.config)


class _Mixed(_Pair):
    """SuPerFed: every training pass takes a new random mixture of the net (theta_f) and
    the second set (theta_l).
    """

    def __init__(
        self,
        net: nn.Module,
        own: Mapping[str, Tensor],
        draw: Callable[[], list[float]],
        config: Mapping[str, Any],
    ) -> None:
        super().__init__(net, own)
        sent = SuPerFedTraining.from_config(config)
        self.draw, self.mu = draw, ProximalSent.from_config(config).mu
        self.nu, self.scale = sent.nu, sent.step_scale
        self.start = [f.detach().clone() for f, _ in self.pairs()]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not self.training:
            return self.net(*args, **kwargs)
        mixed = [
            torch.lerp(f, p, value) for (f, p), value in zip(self.pairs(), self.draw(), strict=True)
        ]
        return self.at(mixed, args, kwargs)

    @torch.no_grad()
    def change(self, parameters: Mapping[str, nn.Parameter], options: Mapping[str, Any]) -> None:
        """Scale the gradient of the loss, which autograd has divided between both; add
        those of the proximal term and of the squared cosine.
        """
        self.notice(parameters)
        pairs = self.pairs()
        dots = [
            sum(float(torch.sum(u * v)) for u, v in ((p[i], p[j]) for p in pairs))
            for i, j in ((0, 1), (0, 0), (1, 1))
        ]
        a, b, c = (self.nu * k for k in cosine_squared_gradient(*dots))
        for (f, p), start in zip(pairs, self.start, strict=True):
            to_f = (self.mu - b) * f - self.mu * start.to(f) + a * p
            to_l = a * f - c * p
            for parameter, term in ((f, to_f), (p, to_l)):
                if any(parameter is moving for moving in parameters.values()):
                    add(parameter, parameter.grad, self.scale - 1)  # type: ignore[arg-type]  # what is moving has one
                    add(parameter, term)


class SuPerFedLoop(Loop):
    """SuPerFed: trains the federated theta_f and the personal theta_l at random
    mixtures. ``lambda_``: of the mixture that is scored.

    ``clients.SuPerFedClient`` chooses lambda on a validation set; here it is one half
    unless you pass another.
    """

    kind = SuPerFedClient
    needs = (ProximalSent, SuPerFedTraining)

    def __init__(
        self,
        build: Callable[[], nn.Module],
        message: Message,
        context: Context,
        store: Store | None = None,
        lambda_: float = 0.5,
    ) -> None:
        self.lambda_ = lambda_
        super().__init__(build, message, context, store)

    def fit(self, epochs: int) -> Any:
        """Train both and store theta_l; before the start round, train theta_f as
        FedProx does.
        """
        mixing = SuPerFedTraining.from_config(self.config).mixing
        if mixing == "none":
            return super().fit(epochs)
        names = list(self.parameters())
        own = self.client.kept(self.config, before=True) or self.client.first_personal(self.config)
        layers = layer_of(names) if mixing == "layer" else [0] * len(names)
        lambdas_of_step = self.client.lambda_source(self.config, max(layers) + 1)

        def draw() -> list[float]:
            lambdas = lambdas_of_step()
            return [lambdas[layer] for layer in layers]

        pair = _Mixed(self.model, dict(zip(names, own, strict=True)), draw, self.config)
        result = self.call(pair, epochs, pair.change)
        self.client.store.save("personal", pair.owned(), self.config)
        return result

    def take_own(self) -> None:
        """Take the mixture, if there is a personal model."""
        if kept := self.client.kept(self.config, before=False):
            mixed = [p.detach() for p in self.parameters().values()]
            torch._foreach_lerp_(mixed, kept, self.lambda_)

"""Methods with a personal model around a training loop of your own: Ditto, FedPer,
LG-FedAvg, FedRep, APFL, SuPerFed.

Sources and equations: the strategies of these names. In evaluation ``model`` is the
personal one, or their mixture.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from flwr.app import Context, Message
from torch import Tensor, nn
from torch.func import functional_call

from algorithms.common.seeds import generator
from algorithms.personal.mixing import cosine_squared_gradient, draw_lambda, layer_of
from clients.base.store import Store
from clients.loops.base import Loop, Named, add
from clients.loops.corrections import FedProxLoop


class DittoLoop(Loop):
    """Ditto: trains the model that was sent, then a personal one with the gradient of
    ``(mu/2) ||v - w_sent||^2`` added.
    """

    def train(
        self, function: Callable[..., Any], loader: Any, epochs: int, *args: Any, **kwargs: Any
    ) -> Any:
        """Call ``function`` for the global model, then for the personal one, which is
        stored; return what the first call returns.
        """
        mu, sent = float(self.config["ditto-mu"]), self.state()
        result = super().train(function, loader, epochs, *args, **kwargs)
        trained = self.state()
        self.model.load_state_dict(self.kept("ditto", sent, before=True) or sent)

        def change(parameters: Mapping[str, nn.Parameter], rate: float) -> None:
            for name, p in parameters.items():
                add(p, p.detach() - sent[name].to(p), mu)

        self.call(
            function,
            self.model,
            loader,
            int(self.config["ditto-epochs"]) or epochs,
            args,
            kwargs,
            change,
        )
        self.keep("ditto", self.state())
        self.model.load_state_dict(trained)
        return result

    def take_own(self) -> None:
        """Take the personal model, if there is one."""
        if kept := self.kept("ditto", self.state(), before=False):
            self.model.load_state_dict(kept)


class PartialLoop(Loop):
    """FedPer and LG-FedAvg: the arrays that the server does not send are this client's
    own, and stay here.
    """

    def load(self, sent: Named) -> None:
        """Join what was sent and what is kept; before the first training, the own part
        is that of a fresh model.
        """
        own = {name: t for name, t in self.state().items() if name not in sent}
        before = not self.message.metadata.message_type.startswith("evaluate")
        self.model.load_state_dict(
            {**self.state(), **(self.kept("private", own, before) or own), **sent}
        )

    def train(
        self, function: Callable[..., Any], loader: Any, epochs: int, *args: Any, **kwargs: Any
    ) -> Any:
        """Train; store the own part."""
        result = self.train_parts(function, loader, epochs, args, kwargs)
        self.keep("private", {name: t for name, t in self.state().items() if name not in self.sent})
        return result

    def train_parts(
        self, function: Callable[..., Any], loader: Any, epochs: int, args: Any, kwargs: Any
    ) -> Any:
        """Train the whole module."""
        return self.call(function, self.model, loader, epochs, args, kwargs)

    def arrays(self) -> Named:
        """Return the shared part."""
        return {name: t for name, t in self.state().items() if name in self.sent}


class FedRepLoop(PartialLoop):
    """FedRep: trains the own part with the shared one fixed, then the shared part with
    the own one fixed.
    """

    def train_parts(
        self, function: Callable[..., Any], loader: Any, epochs: int, args: Any, kwargs: Any
    ) -> Any:
        """Call ``function`` twice, with the numbers of epochs of the configuration;
        return what the second call returns.
        """
        trainable = self.parameters()
        result = None
        for shared, number in (
            (False, int(self.config["fedrep-head-epochs"]) or epochs),
            (True, self.config["fedrep-body-epochs"]),
        ):
            for name, p in trainable.items():
                p.requires_grad_((name in self.sent) == shared)
                p.grad = None
            result = self.call(function, self.model, loader, int(number), args, kwargs)
        for p in trainable.values():
            p.requires_grad_(True)
        return result


# --- two models in one module ---------------------------------------------------------


class _Pair(nn.Module):
    """The module ``net`` and a second set ``own`` of its parameters: optimisers see
    both, the outputs are those of a mixture.
    """

    def __init__(self, net: nn.Module, own: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.net = net
        self.names = list(own)
        self.own = nn.ParameterList([nn.Parameter(tensor.clone()) for tensor in own.values()])

    def pairs(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        """Return (of the net, own) for every parameter."""
        of_net = dict(self.net.named_parameters())
        return [(of_net[name], own) for name, own in zip(self.names, self.own, strict=True)]

    def at(self, tensors: list[Tensor], args: Any, kwargs: Any) -> Any:
        """Return the output of the net with these parameters."""
        return functional_call(self.net, dict(zip(self.names, tensors, strict=True)), args, kwargs)

    def owned(self) -> Named:
        """Return the second set by name."""
        return {name: own.detach() for name, own in zip(self.names, self.own, strict=True)}


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
    """APFL: the first of two equal batches is for the net (w), the second for the
    mixture with v, at the w of before the first.
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

    def change(self, parameters: Mapping[str, nn.Parameter], rate: float) -> None:
        """Let only the model step whose turn it is; descend in alpha once, if it is
        learned.
        """
        moving = self.of_net or bool(self.alpha)
        for name, p in parameters.items():
            if name.startswith("net.") != self.of_net or not moving:
                p.grad = None
        if not self.of_net and self.adaptive and self.weight.grad is not None:
            self.alpha = min(1.0, max(0.0, self.alpha - rate * float(self.weight.grad)))
            self.adaptive = False


class APFLLoop(Loop):
    """APFL: w as FedAvg, and a personal v trained at ``alpha v + (1 - alpha) w``, which
    is what is scored.

    Every batch comes twice, once for either model, so ``function`` takes twice as many
    steps, and the loss that it returns is the mean over both. It must take one forward
    pass and one step a batch.
    """

    def train(
        self, function: Callable[..., Any], loader: Any, epochs: int, *args: Any, **kwargs: Any
    ) -> Any:
        """Train both; store v and alpha."""
        v, alpha = self.own(before=True)
        pair = _Turns(self.model, v, alpha, bool(self.config["apfl-adaptive"]))
        result = self.call(function, pair, _Twice(loader), epochs, args, kwargs, pair.change)
        self.keep(
            "apfl", {**pair.owned(), "alpha": torch.tensor([pair.alpha], dtype=torch.float64)}
        )
        return result

    def take_own(self) -> None:
        """Take the mixture."""
        v, alpha = self.own(before=False)
        with torch.no_grad():
            for name, p in self.parameters().items():
                p.lerp_(v[name].to(p), alpha)

    def own(self, before: bool) -> tuple[Named, float]:
        """Return v and alpha; before the first training, the model that was sent and
        the server's alpha.
        """
        sent = {name: p.detach() for name, p in self.parameters().items()}
        kept = self.kept("apfl", {**sent, "alpha": torch.zeros(1)}, before)
        return (
            (kept, float(kept.pop("alpha"))) if kept else (sent, float(self.config["apfl-alpha"]))
        )


class _Mixed(_Pair):
    """SuPerFed: every training pass is at a new random mixture of the net (theta_f) and
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
        self.draw, self.mu, self.nu = (
            draw,
            float(config["proximal-mu"]),
            float(config["superfed-nu"]),
        )
        self.scale = float(config.get("superfed-step-scale", 1.0))
        self.start = [f.detach().clone() for f, _ in self.pairs()]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not self.training:
            return self.net(*args, **kwargs)
        mixed = [
            torch.lerp(f, p, value) for (f, p), value in zip(self.pairs(), self.draw(), strict=True)
        ]
        return self.at(mixed, args, kwargs)

    @torch.no_grad()
    def change(self, parameters: Mapping[str, nn.Parameter], rate: float) -> None:
        """Scale the gradient of the loss, shared out by autograd; add those of the
        proximal term and of the squared cosine.
        """
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


class SuPerFedLoop(FedProxLoop):
    """SuPerFed: federated theta_f and personal theta_l, trained at random mixtures;
    ``lambda_`` of the mixture that is scored.

    ``clients.SuPerFedClient`` chooses that lambda on a validation set; here it is one
    half unless you say another.
    """

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

    def train(
        self, function: Callable[..., Any], loader: Any, epochs: int, *args: Any, **kwargs: Any
    ) -> Any:
        """Train both and store theta_l; before the start round, train theta_f as
        FedProx does.
        """
        mixing = str(self.config.get("superfed-mixing", "none"))
        if mixing == "none":
            return super().train(function, loader, epochs, *args, **kwargs)
        names = list(self.parameters())
        own = self.kept("personal", self.parameters(), before=True) or self.first_personal()
        layers = layer_of(names) if mixing == "layer" else [0] * len(names)
        place = (self.client, int(self.config.get("server-round", 1)))
        rng = generator(int(self.config.get("seed", 0)), "lambda", *place)

        def draw() -> list[float]:
            lambdas = draw_lambda(rng, mixing, max(layers) + 1)
            return [float(lambdas[layer]) for layer in layers]

        pair = _Mixed(self.model, {name: own[name].detach() for name in names}, draw, self.config)
        result = self.call(function, pair, loader, epochs, args, kwargs, pair.change)
        self.keep("personal", pair.owned())
        return result

    def first_personal(self) -> Named:
        """Return what theta_l starts from: the model that was sent, or a draw of this
        client's own.
        """
        first = (
            self.model
            if self.config.get("superfed-init", "own") == "global"
            else self.fresh("personal", own=True)
        )
        return {name: p.detach() for name, p in first.named_parameters()}

    def take_own(self) -> None:
        """Take the mixture, if there is a personal model."""
        if kept := self.kept("personal", self.parameters(), before=False):
            with torch.no_grad():
                for name, p in self.parameters().items():
                    p.lerp_(kept[name].to(p), self.lambda_)

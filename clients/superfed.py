"""SuPerFed's client: trains theta_f (federated) and theta_l (personal) jointly at random mixtures of the two.

A step draws lambda ~ U(0, 1) (MM: one for the whole model; LM: one per layer), takes the gradient g of the loss at
``theta = (1 - lambda) theta_f + lambda theta_l``, and descends along

    theta_f:  (1 - lambda) g + mu (theta_f - theta_g) + nu d cos^2 / d theta_f
    theta_l:        lambda g                          + nu d cos^2 / d theta_l

The mixed model is written into the module's own parameters; no module is copied, and one backward pass serves both. theta_l has its
own initialisation and never leaves the client. Before the start round lambda = 0 and the cosine term is off: FedProx on theta_f.

Evaluation scores lambda = 0, 0.1, ..., 1 on the local test set and reports the lambda with the best validation accuracy, and also
lambda = 0.5, the global model alone (lambda = 0) and, as in the reference program, the best lambda on the test set ("oracle").

Source: Hahn, "Algorithms for Collaborative Machine Learning under Statistical Heterogeneity", dissertation, UNIST 2024,
arXiv 2408.00050, Chapter II, Algorithm 2.4, equations (2.3)-(2.6).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from algorithms.common.seeds import generator
from algorithms.personal.mixing import cosine_squared_gradient, draw_lambda, layer_of
from algorithms.personal.shared_layer import SharedFirstLayer
from clients.base.data import Split
from clients.base.scores import as_global
from clients.base.training import SGD, Arrays, Config, Tensors, TrainOptions, flatten, get_arrays, set_arrays, trainable
from clients.fedprox import FedProxClient

# Below this value of lambda (1 - lambda) the two models are stepped separately.
EDGE = 1e-3
LAMBDAS = [i / 10 for i in range(11)]
# Metrics reported as curves over lambda, if the objective has them.
CURVES = ("accuracy", "loss", "ece", "mce", "auroc")


class SuPerFedClient(FedProxClient):
    """Client with a federated and a personal model."""

    differentiates_surrogate = True

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, dict[str, Any]]:
        """Return the trained theta_f; store theta_l."""
        if config.get("superfed-mixing", "none") == "none":
            return super().fit(parameters, config)
        set_arrays(self.model, parameters)
        before = self.before(config)
        personal = self.personal(config, before=True)
        loss = self.train_mixed(personal, config)
        self.store.save("personal", [tensor.cpu().numpy() for tensor in personal], config)
        return get_arrays(self.model), len(self.data.train), {"loss": loss, **before}

    def evaluate(self, parameters: Arrays, config: Config) -> tuple[float, int, dict[str, Any]]:
        """Evaluate the mixtures over lambda; see the module docstring."""
        set_arrays(self.model, parameters)
        mixed = [p.detach() for p in trainable(self.model).values()]
        federated, personal = [t.clone() for t in mixed], self.personal(config, before=False)
        splits = (self.data.validation, self.data.test)
        shared = SharedFirstLayer.of(self.model, mixed, federated, personal, [split.x for split in splits])
        at = [i for i in range(len(mixed)) if shared is None or i not in shared.at]
        same = nn.Identity().eval()
        validated, tested = [], []
        for value in LAMBDAS:
            _mix([mixed[i] for i in at], [federated[i] for i in at], [personal[i] for i in at], [value] * len(at))
            if shared is None:
                found = [self.score(split) for split in splits]
            else:  # outputs are scored as those of a net that changes nothing
                found = [
                    self.objective.score(same, Split(outputs, split.y, split.groups))
                    for outputs, split in zip(shared.outputs(value), splits, strict=True)
                ]
            validated.append(found[0])
            tested.append(found[1])
        best = max(range(len(LAMBDAS)), key=lambda i: (validated[i]["accuracy"], -validated[i]["loss"]))
        curves = {f"lambda-{name}": [scores[name] for scores in tested] for name in CURVES if name in tested[0]}
        half = {"half-accuracy": tested[5]["accuracy"], "half-loss": tested[5]["loss"]}
        oracle = {"oracle-accuracy": max(scores["accuracy"] for scores in tested)}
        scores = {**tested[best], **as_global(tested[0]), **half, **oracle, "lambda": LAMBDAS[best]}
        return scores["loss"], len(self.data.test), {**scores, **curves, "lambda-grid": LAMBDAS}

    def personal(self, config: Config, before: bool) -> list[Tensor]:
        """Return theta_l as stored, or its own initialisation if it has not been trained yet."""
        parameters = trainable(self.model)
        kept = self.store.load("personal", config, before)
        if kept is None:
            fresh = dict(zip(self.model.state_dict(), self.fresh_arrays("personal", config, own=True), strict=True))
            kept = [fresh[name] for name in parameters]
        if [a.shape for a in kept] != [tuple(p.shape) for p in parameters.values()]:
            raise ValueError(
                f"client {self.client_id} keeps a personal model of another architecture: use another results folder"
            )
        return [torch.tensor(array, device=p.device) for array, p in zip(kept, parameters.values(), strict=True)]

    def train_mixed(self, personal: list[Tensor], config: Config) -> float:
        """Train theta_f (in ``self.model``) and theta_l (``personal``), both in place; return the mean loss at the mixtures."""
        options = TrainOptions.from_config(config)
        named = trainable(self.model)
        parameters = list(named.values())
        mixed = [p.detach() for p in parameters]
        all_f, federated = flatten(mixed)
        all_l, own = flatten(personal)
        start = [t.clone() for t in federated]
        layers = layer_of(list(named)) if config["superfed-mixing"] == "layer" else [0] * len(mixed)
        rate = options.rate(self.round(config))
        parts = []
        for layer in range(max(layers) + 1):
            at = [i for i, of in enumerate(layers) if of == layer]
            m, f, p, s = ([tensors[i] for i in at] for tensors in (mixed, federated, own, start))
            of_f, of_l = (SGD(tensors, rate, options.momentum, options.weight_decay) for tensors in (f, p))
            parts.append(_Part(at, m, f, p, s, of_f, of_l))
        mu, nu = float(config.get("proximal-mu", 0.0)), float(config.get("superfed-nu", 0.0))
        draw = self.lambda_source(config, len(parts))
        total = self.zero_loss()
        for x, y in self.batches(options, config):
            lambdas = draw()
            for part, value in zip(parts, lambdas, strict=True):
                part.mix(value)
            loss = self.loss(x, y)
            gradients = torch.autograd.grad(self.surrogate(loss, config), parameters)
            a, b, c = (nu * k for k in _angle(all_f, all_l)) if nu else (0.0, 0.0, 0.0)
            for part, value in zip(parts, lambdas, strict=True):
                part.follow(gradients, value, mu, a, b, c)
            total += loss.detach() * len(y)
        for tensor, trained in zip(mixed + personal, federated + own, strict=True):
            tensor.copy_(trained)
        return float(total) / self.samples_seen(options)

    def lambda_source(self, config: Config, num_parts: int) -> Callable[[], list[float]]:
        """Return a function that draws the mixing weights of the next mini-batch, one per part."""
        rng = generator(int(config.get("seed", 0)), "lambda", self.client_id, self.round(config))
        mixing = str(config["superfed-mixing"])
        return lambda: draw_lambda(rng, mixing, num_parts).tolist()


@dataclass
class _Part:
    """Tensors that share one lambda: the whole model (MM) or one layer (LM). ``at``: their indices among the gradients."""

    at: list[int]
    mixed: list[Tensor]
    federated: list[Tensor]
    personal: list[Tensor]
    start: list[Tensor]
    of_f: SGD
    of_l: SGD

    def mix(self, value: float) -> None:
        """Write ``(1 - lambda) theta_f + lambda theta_l`` into the module."""
        _mix(self.mixed, self.federated, self.personal, [value] * len(self.mixed))

    def follow(self, gradients: Tensors, value: float, mu: float, a: float, b: float, c: float) -> None:
        """Step theta_f and theta_l along the directions in the module docstring.

        ``gradients``: g, at theta(lambda) with lambda = ``value``. ``a``, ``b``, ``c``: coefficients of the cosine term, whose gradient
        is ``a theta_l - b theta_f`` for theta_f and ``a theta_f - c theta_l`` for theta_l.
        """
        g = [gradients[i] for i in self.at]
        spread = value * (1 - value)
        if spread < EDGE:  # as the directions are written; k below would drown g
            to_f, to_l = torch._foreach_mul(g, 1 - value), torch._foreach_mul(g, value)
            torch._foreach_add_(to_l, self.federated, alpha=a)
            self.of_f.step(to_f, mu - b, [(self.start, -mu), (self.personal, a)])
            self.of_l.step(to_l, -c)
            return
        # One pass over g serves both. With k = a / (lambda (1 - lambda)) and h = g + k theta(lambda):
        #   (1 - lambda) h = (1 - lambda) g + a theta_l + k (1 - lambda)^2 theta_f,
        #         lambda h =       lambda g + a theta_f + k lambda^2 theta_l,
        # so each direction is a multiple of h whose last term is taken back by the decay. Saves a sixth of TwoNN's step.
        k = a / spread
        if k:
            torch._foreach_add_(g, self.mixed, alpha=k)
        self.of_l.step(g, -c - k * value * value, scale=value)
        self.of_f.step(g, mu - b - k * (1 - value) ** 2, [(self.start, -mu)], scale=1 - value)


def _mix(mixed: list[Tensor], federated: list[Tensor], personal: list[Tensor], lambdas: list[float]) -> None:
    """Write ``(1 - lambda) theta_f + lambda theta_l`` into ``mixed``, tensor by tensor."""
    for out, f, p, value in zip(mixed, federated, personal, lambdas, strict=True):
        torch.lerp(f, p, value, out=out)


def _angle(federated: Tensor, personal: Tensor) -> tuple[float, float, float]:
    """Return the gradient coefficients of cos^2 over all mixed parameters together; a single GPU synchronisation."""
    dots = [torch.dot(u, v) for u, v in ((federated, personal), (federated, federated), (personal, personal))]
    return cosine_squared_gradient(*torch.stack(dots).tolist())

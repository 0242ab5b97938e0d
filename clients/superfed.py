"""SuPerFed's client: trains theta_f (federated) and theta_l (personal) together at random mixtures of the two.

Source: the dissertation's Chapter II, Algorithm 2.4, equations (2.3)-(2.6). A step draws lambda ~ U(0, 1) (one for the model: MM, one
a layer: LM), takes the gradient g of the loss at ``theta = (1 - lambda) theta_f + lambda theta_l``, and follows
    theta_f:  (1 - lambda) g + mu (theta_f - theta_g) + nu d cos^2 / d theta_f
    theta_l:        lambda g                          + nu d cos^2 / d theta_l
The mixed model is written into the module's own parameters; no module is copied, one backward pass serves both. theta_l has its own
initialisation and never leaves the client. Before the start round lambda = 0 and the cosine term is off: FedProx on theta_f.

Evaluation scores lambda = 0, 0.1, ..., 1 on the local test set and reports the lambda with the best validation accuracy (the
reference picks it on the test set), beside lambda = 0.5 and the global model alone (lambda = 0).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from algorithms.mixing import cosine_squared_gradient, draw_lambda, layer_of
from algorithms.seeds import generator
from clients.evaluation import score
from clients.fedavg import as_global
from clients.fedprox import FedProxClient
from clients.training import SGD, Arrays, Config, TrainOptions, get_arrays, set_arrays, trainable

LAMBDAS = [i / 10 for i in range(11)]


class SuPerFedClient(FedProxClient):
    """A client with a federated and a personal model."""

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, dict[str, Any]]:
        """Return the trained theta_f; keep theta_l."""
        if config.get("superfed-mixing", "none") == "none":
            return super().fit(parameters, config)
        set_arrays(self.model, parameters)
        personal = self.personal(config, before=True)
        loss = self.train_mixed(personal, config)
        self.store.save("personal", [tensor.cpu().numpy() for tensor in personal], config)
        return get_arrays(self.model), len(self.data.train), {"loss": loss}

    def evaluate(self, parameters: Arrays, config: Config) -> tuple[float, int, dict[str, Any]]:
        """Score along lambda; see the module docstring."""
        set_arrays(self.model, parameters)
        mixed = [p.detach() for p in trainable(self.model).values()]
        federated, personal = [t.clone() for t in mixed], self.personal(config, before=False)
        validated, tested = [], []
        for value in LAMBDAS:
            _mix(mixed, federated, personal, [value] * len(mixed))
            validated.append(score(self.model, self.data.validation))
            tested.append(score(self.model, self.data.test))
        best = max(range(len(LAMBDAS)), key=lambda i: (validated[i]["accuracy"], -validated[i]["loss"]))
        curves = {f"lambda-{name}": [scores[name] for scores in tested] for name in ("accuracy", "loss", "ece", "mce")}
        half = {"half-accuracy": tested[5]["accuracy"], "half-loss": tested[5]["loss"]}
        scores = {**tested[best], **as_global(tested[0]), **half, "lambda": LAMBDAS[best]}
        return scores["loss"], len(self.data.test), {**scores, **curves, "lambda-grid": LAMBDAS}

    def personal(self, config: Config, before: bool) -> list[Tensor]:
        """Return theta_l: as kept, or its own initialisation while it has not been trained."""
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
        parameters, layers = list(named.values()), layer_of(list(named))
        mixed = [p.detach() for p in parameters]
        federated, start = [t.clone() for t in mixed], [t.clone() for t in mixed]
        rate = options.rate(self.round(config))
        of_f = SGD(federated, rate, options.momentum, options.weight_decay)
        of_l = SGD(personal, rate, options.momentum, options.weight_decay)
        mu, nu = float(config.get("proximal-mu", 0.0)), float(config.get("superfed-nu", 0.0))
        draw = self.lambda_source(config, max(layers) + 1)

        def step(x: Tensor, y: Tensor) -> Tensor:
            by_layer = draw()
            lambdas = [by_layer[layer] for layer in layers]
            _mix(mixed, federated, personal, lambdas)
            loss = self.loss(x, y)
            gradients = torch.autograd.grad(loss, parameters)
            a, b, c = (nu * k for k in _angle(federated, personal)) if nu else (0.0, 0.0, 0.0)
            of_f.push(gradients, [1 - value for value in lambdas], mu - b, [(start, -mu), (personal, a)])
            of_l.push(gradients, lambdas, -c, [(federated, a)])
            of_f.move()
            of_l.move()
            return loss.detach()

        loss = self.run_epochs(step, options, config)
        for tensor, value in zip(mixed, federated, strict=True):
            tensor.copy_(value)
        return loss

    def lambda_source(self, config: Config, num_layers: int) -> Callable[[], list[float]]:
        """Return a function that draws the mixing weights of the next mini-batch, one a layer."""
        rng = generator(int(config.get("seed", 0)), "lambda", self.client_id, self.round(config))
        mixing = str(config["superfed-mixing"])
        return lambda: draw_lambda(rng, mixing, num_layers).tolist()


def _mix(mixed: list[Tensor], federated: list[Tensor], personal: list[Tensor], lambdas: list[float]) -> None:
    """Write ``(1 - lambda) theta_f + lambda theta_l`` into ``mixed``, tensor by tensor."""
    for out, f, p, value in zip(mixed, federated, personal, lambdas, strict=True):
        torch.lerp(f, p, value, out=out)


def _angle(federated: list[Tensor], personal: list[Tensor]) -> tuple[float, float, float]:
    """Return the coefficients of the gradient of cos^2 over all mixed parameters together; one synchronisation on a GPU."""
    dots = [
        torch.stack([torch.dot(u.reshape(-1), v.reshape(-1)) for u, v in zip(left, right, strict=True)]).sum()
        for left, right in ((federated, personal), (federated, federated), (personal, personal))
    ]
    return cosine_squared_gradient(*torch.stack(dots).tolist())

"""SuPerFed's client: trains theta_f (federated) and theta_l (personal) jointly at
random mixtures of the two.

A step draws lambda ~ U(0, 1) (MM: one for the whole model; LM: one per layer), takes
the gradient g of the loss at ``theta = (1 - lambda) theta_f + lambda theta_l``, and
descends along

    theta_f:  (1 - lambda) g + mu (theta_f - theta_g) + nu d cos^2 / d theta_f
    theta_l:        lambda g                          + nu d cos^2 / d theta_l

One backward pass serves both, and no module is copied. theta_l has its own
initialisation and never leaves the client. Before the start round lambda = 0 and the
cosine term is off: FedProx on theta_f.

Evaluation scores lambda = 0, 0.1, ..., 1 on the local test set and reports the lambda
that the server sends, or else that with the least validation loss, and also lambda =
0.5, the global model alone (lambda = 0) and, as in the reference program, the best
lambda on the test set ("oracle"). If the server says so, the mixture is trained before
it is scored.
Running statistics of normalisation layers belong to no mixture: beyond lambda = 0 they
are estimated anew on the client's training samples.

Source: Hahn, "Algorithms for Collaborative Machine Learning under Statistical
Heterogeneity", dissertation, UNIST 2024, arXiv 2408.00050, Chapter II, Algorithm 2.4,
equations (2.3)-(2.6).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedapps.algorithms.common.measures import leading_of
from fedapps.algorithms.common.modules import estimate_statistics, has_running_statistics
from fedapps.algorithms.common.seeds import generator
from fedapps.algorithms.common.steps import Gradient, State, Tensors
from fedapps.algorithms.contract.sent import (
    ASKED,
    ENDS,
    LAMBDAS,
    ProximalSent,
    SuPerFedScoring,
    SuPerFedTraining,
)
from fedapps.algorithms.personal.choice import least
from fedapps.algorithms.personal.mixing import cosine_squared_gradient, draw_lambda, layer_of
from fedapps.algorithms.personal.shared_layer import SharedFirstLayer
from fedapps.clients.base.data import Split
from fedapps.clients.base.evaluation import Scores
from fedapps.clients.base.scores import as_global, higher_is_better
from fedapps.clients.base.together import once
from fedapps.clients.base.training import Arrays, Config, get_arrays, set_arrays, trainable
from fedapps.clients.families.candidates import answer
from fedapps.clients.fedprox import FedProxClient
from fedapps.clients.steps.sgd import Number, Optimiser, add, between, inner, parted, scaled

# Metrics reported as curves over lambda, if the objective has them.
CURVES = ("accuracy", "loss", "ece", "mce", "auroc", "rmse", "mae", "concordance")


class SuPerFedClient(FedProxClient):
    """Client with a federated and a personal model."""

    reads = (SuPerFedScoring,)
    differentiates_surrogate = True
    needs_all_steps = ""

    def train_round(self, config: Config) -> dict[str, Any]:
        """Train theta_f and theta_l; store theta_l."""
        if SuPerFedTraining.from_config(config).mixing == "none":
            return super().train_round(config)
        personal = self.kept(config, before=True) or self.first_personal(config)
        loss = self.train_mixed(personal, config)
        self.store.save("personal", [tensor.cpu().numpy() for tensor in personal], config)
        return {"loss": loss}

    def evaluate(self, parameters: Arrays, config: Config) -> tuple[float, int, dict[str, Any]]:
        """Evaluate the mixtures over lambda; see the module docstring. If the server
        asks for them (lambda -1), return their validation losses only.
        """
        sent = SuPerFedScoring.from_config(config)
        if sent.lambda_ == ASKED:
            return answer(self.data, lambda own: self.candidate_losses(parameters, own, config))
        scored = self.along(parameters, [self.data.validation, self.data.test], config)
        validated, tested = (list(column) for column in zip(*scored, strict=True))
        losses = np.array([scores["loss"] for scores in validated], np.float64)
        best = (
            least(losses, np.array([higher_is_better(scores) for scores in validated]))
            if sent.lambda_ is None
            else LAMBDAS.index(sent.lambda_)
        )
        curves = {
            f"lambda-{name}": [scores[name] for scores in tested]
            for name in CURVES
            if name in tested[0]
        }
        name = leading_of(tested[0])
        chosen = tested[best]
        if sent.tune:
            self.tune(parameters, LAMBDAS[best], config)
            chosen = self.score(self.data.test)
        scores = {
            **chosen,
            **as_global(tested[0]),
            f"half-{name}": tested[5][name],
            "half-loss": tested[5]["loss"],
            f"oracle-{name}": max(tested, key=higher_is_better)[name],
            "lambda": LAMBDAS[best],
            **curves,
            "validation-samples": len(self.data.validation),
            "lambda-validation-loss": losses.tolist(),
            "tuned-epochs": sent.tune,
            "lambda-grid": LAMBDAS,
        }
        return scores["loss"], len(self.data.test), scores

    def candidate_losses(self, parameters: Arrays, split: Split, config: Config) -> list[float]:
        """Return the losses over lambda and, if they are to be trained first, of the
        models at both ends.
        """
        losses = [scores["loss"] for (scores,) in self.along(parameters, [split], config)]
        for end in ENDS if SuPerFedScoring.from_config(config).tune else ():
            self.tune(parameters, end, config)
            losses.append(self.score(split)["loss"])
        return losses

    def tune(self, parameters: Arrays, value: float, config: Config) -> None:
        """Turn ``self.model`` into the mixture at lambda = ``value``, trained as
        FedProx's client trains, for the epochs that the server sends.
        """
        set_arrays(self.model, parameters)
        torch._foreach_lerp_(
            [p.detach() for p in trainable(self.model).values()], self.personal(config), value
        )
        if value:
            estimate_statistics(self.model, self.data.train.x)
        if epochs := SuPerFedScoring.from_config(config).tune:
            self.train({**config, "local-epochs": epochs})

    def along(
        self, parameters: Arrays, splits: Sequence[Split], config: Config
    ) -> list[list[Scores]]:
        """Return the scores of the mixtures over lambda, on each split."""
        set_arrays(self.model, parameters)
        personal = self.personal(config)
        return once(lambda: self._mixtures(personal, splits))

    def _mixtures(self, personal: list[Tensor], splits: Sequence[Split]) -> list[list[Scores]]:
        mixed = [p.detach() for p in trainable(self.model).values()]
        federated = [t.clone() for t in mixed]
        estimates = has_running_statistics(self.model)
        inputs = [split.x for split in splits]
        shared = (
            None
            if estimates
            else SharedFirstLayer.of(self.model, mixed, federated, personal, inputs)
        )
        at = [i for i in range(len(mixed)) if shared is None or i not in shared.at]
        same = nn.Identity().eval()
        scored: list[list[Scores]] = []
        for value in LAMBDAS:
            for i in at:
                torch.lerp(federated[i], personal[i], value, out=mixed[i])
            if estimates and value:  # at 0 it is the received model
                estimate_statistics(self.model, self.data.train.x)
            if shared is None:
                scored.append([self.score(split) for split in splits])
            else:  # outputs are scored as those of a net that changes nothing
                scored.append(
                    [
                        self.objective.score(same, replace(split, x=outputs))
                        for outputs, split in zip(shared.outputs(value), splits, strict=True)
                    ]
                )
        return scored

    def scored(
        self, parameters: Arrays, config: Config, metrics: dict[str, Any]
    ) -> dict[str, Tensor]:
        """Return the mixture that was scored."""
        self.tune(parameters, metrics["lambda"], config)
        return super().scored(parameters, config, metrics)

    def personal(self, config: Config) -> list[Tensor]:
        """Return theta_l for an evaluation: as stored, or for a client without one, a
        new one; theta_f is in ``self.model``.

        Once mixing has begun, such a client trains theta_l for ``superfed-catch-up``
        epochs at the mixtures, from the received model, which stays unchanged. It
        stores nothing: the same message has the same answer, and training is not
        affected.
        """
        if kept := self.kept(config, before=False):
            return kept
        personal, sent = self.first_personal(config), SuPerFedScoring.from_config(config)
        if sent.catch_up and sent.mixing != "none":
            received = get_arrays(self.model)
            self.train_mixed(personal, {**config, "local-epochs": sent.catch_up})
            set_arrays(self.model, received)
        return personal

    def kept(self, config: Config, before: bool) -> list[Tensor] | None:
        """Return theta_l as stored, or ``None``."""
        moving = trainable(self.model).values()
        return self.stored("personal", "personal model", moving, config, before)

    def first_personal(self, config: Config) -> list[Tensor]:
        """Return the initial theta_l: the received theta_f in ``self.model``, or this
        client's own random initialisation.
        """
        parameters = trainable(self.model)
        if SuPerFedTraining.from_config(config).init == "global":
            return [p.detach().clone() for p in parameters.values()]
        fresh = dict(
            zip(
                self.model.state_dict(),
                self.fresh_arrays("personal", config, own=True),
                strict=True,
            )
        )
        return [torch.tensor(fresh[name], device=p.device) for name, p in parameters.items()]

    def train_mixed(self, personal: list[Tensor], config: Config) -> float:
        """Train theta_f (in ``self.model``) and theta_l (``personal``), both in place;
        return the mean loss at the mixtures.
        """
        sent, named = SuPerFedTraining.from_config(config), trainable(self.model)
        mixed = [p.detach() for p in named.values()]
        federated = [t.clone() for t in mixed]
        layers = layer_of(list(named)) if sent.mixing == "layer" else [0] * len(mixed)
        sgd, rate = self.sgd(config)
        mu, nu = ProximalSent.from_config(config).mu, sent.nu
        draw, scale = self.lambda_source(config, max(layers) + 1), sent.step_scale
        state = {
            "f": federated,
            "l": personal,
            "velocity-f": sgd.velocity(federated),
            "velocity-l": sgd.velocity(personal),
            "start": tuple(t.clone() for t in mixed) if mu else (),
            "rate": rate,
            "scale": scale,
        }
        step = Mixture(sgd, mu, nu, tuple(layers))
        loss = self.run(step, state, config, moving=lambda _: {"lambda": draw()})
        for tensor, trained in zip(mixed, federated, strict=True):
            tensor.copy_(trained)
        return loss

    def lambda_source(self, config: Config, num_parts: int) -> Callable[[], list[float]]:
        """Return a function that draws the mixing weights of the next mini-batch, one
        per part.
        """
        rng = generator(*self.draw("lambda", config))
        mixing = SuPerFedTraining.from_config(config).mixing
        return lambda: draw_lambda(rng, mixing, num_parts).tolist()


@dataclass(frozen=True)
class Mixture:
    """A step of both models, see the module docstring. ``layers``: for each tensor, the
    position of its lambda.

    ``state``: ``f``, ``l`` and their velocities; ``start``, the received model, if mu >
    0; ``rate``, ``scale`` and ``lambda``.
    """

    by_cohort = True
    sgd: Optimiser
    mu: float
    nu: float
    layers: tuple[int, ...]

    def __call__(self, gradient: Gradient, state: State) -> Tensor:
        """Take the step."""
        f, own, rate, scale = state["f"], state["l"], state["rate"], state["scale"]
        values = [state["lambda"][layer] for layer in self.layers]
        loss, g = gradient(between(gradient, f, own, values))
        if isinstance(scale, Tensor) or scale != 1:
            g = scaled(g, scale)
        to_f, to_l = parted(g, values)
        a, b, c = self._angle(f, own, not isinstance(rate, Tensor)) if self.nu else (0.0, 0.0, 0.0)
        add(to_l, f, a)
        add(to_f, own, a)
        terms = [(state["start"], -self.mu)] if self.mu else []
        # theta_f's direction holds theta_l already
        self.sgd(own, to_l, state["velocity-l"], rate, -c)
        self.sgd(f, to_f, state["velocity-f"], rate, self.mu - b, terms)
        return loss

    def _angle(self, f: Tensors, own: Tensors, floats: bool) -> Sequence[Number]:
        """Return the gradient coefficients of nu cos^2 over all mixed parameters
        together.
        """
        dots = inner((f, own), (f, f), (own, own))
        # a single GPU synchronisation
        values: Sequence[Number] = dots.tolist() if floats and dots.dim() == 1 else dots.unbind()
        return [self.nu * k for k in cosine_squared_gradient(*values)]

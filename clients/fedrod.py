"""Fed-RoD's client; source and equations: ``strategies/fedrod.py``."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedapps.algorithms.common.steps import Problem
from fedapps.algorithms.contract.sent import FedRoDSent
from fedapps.clients.base.scores import as_global
from fedapps.clients.base.training import Arrays, Config, set_arrays, trainable
from fedapps.clients.families.personal_model import PersonalClient
from fedapps.clients.partial_sharing import head_of
from fedapps.clients.steps.sgd import descent


class FedRoDClient(PersonalClient):
    """Trains the generic model with the balanced loss, and a head of its own on the sum
    of both heads' outputs.

    The own head starts as the head of the first received model. The reported training
    loss is the sum of both losses.
    """

    kept_as = "fedrod"
    reads = (FedRoDSent,)
    differentiates_surrogate = False  # what is minimised are two losses
    needs_all_steps = ""

    def train_round(self, config: Config) -> dict[str, Any]:
        """Train the generic model and the own head; store this."""
        both = TwoHeads(self.model, self.own_head(config, before=True))
        prior = self.log_counts(both)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            generic, own = both.outputs(x)
            return self.objective.loss(generic + prior, y) + self.objective.loss(
                generic.detach() + own, y
            )

        tensors = [p.detach() for p in trainable(both).values()]
        sgd, rate = self.sgd(config)
        problem = Problem(both, loss, self.surrogate(config))
        mean_loss = self.run(*descent(sgd, tensors, rate), config, problem=problem)
        self.store.save(self.kept_as, [p.detach().cpu().numpy() for p in both.own], config)
        return {"loss": mean_loss}

    def evaluate(self, parameters: Arrays, config: Config) -> tuple[float, int, dict[str, Any]]:
        """Evaluate the sum of both heads (before the first training, the generic one),
        and the generic one as ``global-...``.
        """
        set_arrays(self.model, parameters)
        scores = generic = self.score(self.data.test)
        if self.kept(config, before=False) is not None:
            both = TwoHeads(self.model, self.own_head(config, before=False))
            scores = self.objective.score(both, self.data.test)
        return scores["loss"], len(self.data.test), {**scores, **as_global(generic)}

    def scored(
        self, parameters: Arrays, config: Config, metrics: dict[str, Any]
    ) -> dict[str, Tensor]:
        """Return the model whose head is the sum of both, which linear heads allow.
        Raises ``ValueError`` for others.
        """
        arrays = super().scored(parameters, config, metrics)
        if self.kept(config, before=False) is None:
            return arrays
        layers = {name.rpartition(".")[0] for name in self.head_parameters()}
        if len(layers) != 1 or not isinstance(self.model.get_submodule(layers.pop()), nn.Linear):
            raise ValueError("Fed-RoD can add its heads only if each is one linear layer")
        return {
            **arrays,
            **{
                name: arrays[name] + p.cpu()
                for name, p in self.own_head(config, before=False).items()
            },
        }

    def own_head(self, config: Config, before: bool) -> dict[str, Tensor]:
        """Return the own head by name: as stored, or before the first training that of
        ``self.model``.
        """
        now, kept = self.head_parameters(), self.kept(config, before)
        if kept is None:
            return {name: p.detach().clone() for name, p in now.items()}
        return {
            name: torch.tensor(a, device=p.device)
            for (name, p), a in zip(now.items(), kept, strict=True)
        }

    def head_parameters(self) -> dict[str, Tensor]:
        """Return the trainable parameters of the head by name."""
        prefixes = head_of(self.model)
        return {name: p for name, p in trainable(self.model).items() if name.startswith(prefixes)}

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the own head."""
        return [tuple(p.shape) for p in self.head_parameters().values()]

    def log_counts(self, both: "TwoHeads") -> Tensor:
        """Return log n_c for each class c, minus infinity for classes that the client
        does not have. Raises ``ValueError``.
        """
        y = self.data.train.y
        with torch.no_grad():
            outputs = both.net.eval()(self.data.train.x[:1])
        if outputs.dim() != 2 or outputs.shape[1] < 2 or y.dim() != 1:
            raise ValueError(
                "Fed-RoD balances classes: it needs one class per sample and one output per class"
            )
        return torch.bincount(y, minlength=outputs.shape[1]).to(outputs.dtype).log()


class TwoHeads(nn.Module):
    """``net``, and a second set ``own`` of its head's parameters; its output is the sum
    of the net's with either head.
    """

    def __init__(self, net: nn.Module, own: dict[str, Tensor]) -> None:
        super().__init__()
        self.net, self.names = net, list(own)
        self.own = nn.ParameterList([nn.Parameter(tensor) for tensor in own.values()])

    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs with the net's head, and with the own one, whose gradient
        does not reach the body.
        """
        generic: Tensor = self.net(x)
        fixed = {name: p.detach() for name, p in self.net.named_parameters()}
        # running statistics see a batch once
        fixed |= {name: buffer.clone() for name, buffer in self.net.named_buffers()}
        own: Tensor = functional_call(
            self.net, {**fixed, **dict(zip(self.names, self.own, strict=True))}, (x,)
        )
        return generic, own

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of both outputs."""
        generic, own = self.outputs(x)
        return generic + own

"""Outputs of a net at many points of the line between two sets of its parameters,
without computing its first layer at each of them.

A linear layer whose input does not depend on the parameters is linear in them too: at
``(1 - lambda) f + lambda p`` its output is ``(1 - lambda) W_f x + lambda W_p x``, so
two products serve all lambda. In a fully connected net the first layer is most of the
work: 157,000 of TwoNN's 199,210 weights.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fedapps.algorithms.common.modules import evaluation_batch, outputs_of
from fedapps.algorithms.common.precision import Bfloat16

#: Largest size of the first layer's outputs in memory, at both ends together; a net
#: with more is computed as usual.
HELD = 32_000_000


class SharedFirstLayer:
    """A net, which is put into evaluation mode, on some inputs.

    ``at``: indices of the first layer's parameters, which need not be written.
    """

    def __init__(
        self, model: nn.Module, layer: nn.Linear, at: list[int], inputs: Sequence[Tensor]
    ) -> None:
        self.model, self.layer, self.at = model, layer, at
        self.inputs = [x.split(evaluation_batch(model, x)) for x in inputs]
        self.ends: list[list[tuple[Tensor, Tensor]]] = []

    @classmethod
    def of(
        cls,
        model: nn.Module,
        mixed: list[Tensor],
        federated: list[Tensor],
        personal: list[Tensor],
        inputs: Sequence[Tensor],
    ) -> "SharedFirstLayer | None":
        """Return the net prepared for the line, or ``None`` if its first layer is not
        linear, or its parameters are used elsewhere, or the net computes in bfloat16.

        ``mixed``: the net's trainable parameters, in order, which are overwritten;
        ``federated``, ``personal``: the ends of the line.
        """
        if isinstance(model, Bfloat16):  # sums of products are rounded otherwise
            return None
        model.eval()  # once: listing all modules of a small net takes as long as its outputs
        layer = _first_linear(model, inputs[0][:1])
        if layer is None or 2 * layer.out_features * sum(map(len, inputs)) > HELD:
            return None
        places = {id(p): i for i, p in enumerate(p for p in model.parameters() if p.requires_grad)}
        at = [places[id(p)] for p in layer.parameters() if id(p) in places]
        if len(at) != len(list(layer.parameters())) or len(places) != len(mixed):
            return None
        shared, one = cls(model, layer, at, inputs), inputs[0][:1]
        half = [torch.lerp(f, p, 0.5) for f, p in zip(federated, personal, strict=True)]
        # A net may use the layer's weights elsewhere as well, or other parameters
        # before it: compare at one sample.
        torch._foreach_copy_(mixed, half)
        wanted = outputs_of(model, one)
        torch._foreach_copy_(mixed, federated)
        ends = shared._ends(one, federated, personal)
        for i, (out, value) in enumerate(zip(mixed, half, strict=True)):
            if i not in at:
                out.copy_(value)
        actual = shared._with(lambda _: torch.lerp(*ends, 0.5), one)
        if not torch.allclose(actual, wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max())):
            return None
        shared.ends = [
            [shared._ends(part, federated, personal) for part in parts] for parts in shared.inputs
        ]
        return shared

    def outputs(self, value: float) -> list[Tensor]:
        """Return the outputs (n, ...) for each of the inputs at lambda = ``value``. The
        other parameters must already be mixed at this lambda.
        """
        return [
            torch.cat(
                [
                    self._forward(part, ends, value)
                    for part, ends in zip(parts, of_parts, strict=True)
                ]
            )
            for parts, of_parts in zip(self.inputs, self.ends, strict=True)
        ]

    @torch.no_grad()
    def _ends(
        self, x: Tensor, federated: list[Tensor], personal: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the first layer's outputs at both ends of the line."""

        def stop(given: Tensor) -> Tensor:
            raise _Reached(given)

        try:
            self._with(stop, x)
        except _Reached as reached:
            given: Tensor = reached.args[0]
        f, p = ([ends[i] for i in self.at] for ends in (federated, personal))
        return nn.functional.linear(given, *f), nn.functional.linear(given, *p)

    def _forward(self, x: Tensor, ends: tuple[Tensor, Tensor], value: float) -> Tensor:
        mixture = torch.lerp(*ends, value)
        return self._with(lambda given: mixture, x)

    @torch.no_grad()
    def _with(self, forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Return the model's outputs with ``forward`` in place of its first layer."""
        self.layer.forward = forward  # type: ignore[method-assign, assignment]
        try:
            out: Tensor = self.model(x)
        finally:
            del self.layer.forward
        return out


class _Reached(Exception):
    """The first layer's input is known: the rest of the net is not needed."""


def _first_linear(model: nn.Module, x: Tensor) -> nn.Linear | None:
    """Return the first module with parameters that the net calls, if it is a linear
    layer that is called once.
    """
    called: list[nn.Module] = []
    leaves = [m for m in model.modules() if next(m.parameters(recurse=False), None) is not None]
    hooks = [m.register_forward_pre_hook(lambda module, _: called.append(module)) for m in leaves]
    try:
        outputs_of(model, x)
    finally:
        for hook in hooks:
            hook.remove()
    first = called[0] if called else None
    return first if type(first) is nn.Linear and called.count(first) == 1 else None

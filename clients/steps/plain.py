"""The plain loop that local steps equal, and the nine words between it and a client's:

- *options*: what a message says about training: rate, epochs, size of a mini-batch
  (``clients.base.options.TrainOptions``)
- *epochs*: the round's samples in their order, from which mini-batches are cut
  (``batches``), all of them or as many as the message asks for (``partial_work``)
- *problem*: the net and the loss that is minimised (``algorithms.common.steps``)
- *gradient*: parameters -> loss and gradient there, for the step's mini-batch
- *state*: the lists of tensors, and the numbers, that a step works on, by name
- *step*: the function (gradient, state) -> loss, which changes the state; each method
  has its own, FedAvg has ``sgd.Descent``
- *optimiser*: SGD or Adam on lists of tensors (``sgd``)
- *penalty*: the terms that a method adds to the gradient (``sgd``)
- *runner*: who takes the steps, with the same results: ``Eager`` one by one,
  ``cohorts.Cohorts`` those of several clients at once, ``compiled.Compiler`` four at a
  time as compiled code

``trained_net`` puts them together. ``FedAvgClient.train`` gives the same parameters and
the same loss as this loop; in double precision to the last bit, as a test checks. It
does not call it, because ``torch.optim`` takes two seconds to import, and because
methods add to the step.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn


def train(
    module: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    batches: Iterable[tuple[Tensor, Tensor]],
    rate: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    optimizer: str = "sgd",
) -> float:
    """Train ``module`` in place on mini-batches (x, y), with the mean ``loss(outputs,
    y)``; return the sum of the losses of all samples. ``momentum``: Adam's beta_1.
    """
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[optimizer]
    own = {"momentum": momentum} if optimizer == "sgd" else {"betas": (momentum, 0.999)}
    optimiser = kind(module.parameters(), rate, weight_decay=weight_decay, fused=True, **own)
    total = 0.0
    for x, y in batches:
        mean = loss(module(x), y)
        optimiser.zero_grad()
        mean.backward()
        optimiser.step()
        total += mean.item() * len(y)
    return total

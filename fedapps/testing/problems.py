"""Small problems with a known answer, as tasks: points with classes, and quadratics."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedapps.clients import ClientData, Split
from fedapps.clients.base.evaluation import CLASSIFICATION, Objective

Named = dict[str, NDArray[Any]]


def blobs(
    seed: int = 0, n: int = 60, classes: int = 3, dim: int = 4, shift: float = 0.0
) -> ClientData:
    """Return a small classification problem as a client's data: Gaussian blobs around
    the axes, split 60 : 20 : 20.
    """
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    x = rng.normal(size=(n, 1, 1, dim)) * 0.5
    x[np.arange(n), 0, 0, y] += 2.0
    x += shift
    cut, cut2 = int(0.6 * n), int(0.8 * n)

    def split(part: slice) -> Split:
        return Split(torch.tensor(x[part], dtype=torch.float32), torch.tensor(y[part]))

    return ClientData(split(slice(0, cut)), split(slice(cut, cut2)), split(slice(cut2, n)))


def small_net(seed: int, classes: int = 3, dim: int = 4, hidden: int = 8) -> nn.Sequential:
    """Return a two-layer net for ``blobs``."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, classes)
        )


class Problem:
    """A task for exams, with the members that clients and strategies of a method with a
    torch net use.
    """

    name = "exam"
    from_clients = ""
    num_clients: int
    num_outputs: int
    objective: Objective

    def model_fn(self, seed: int) -> nn.Module:
        """Return a net initialised from the seed."""
        raise NotImplementedError

    def client_data(self, client_id: int | str, num_clients: int) -> ClientData:
        """Return the samples of a client."""
        raise NotImplementedError

    def check(self, num_clients: int) -> None:
        """Accept any number of clients."""

    @cached_property
    def _work_model(self) -> nn.Module:
        return self.model_fn(0)

    def work_model(self) -> nn.Module:
        """Return the net that the clients of a process share."""
        return self._work_model

    def initial_arrays(self) -> Named:
        """Return the arrays that a run starts from."""
        return {
            name: tensor.numpy().copy() for name, tensor in self.model_fn(1).state_dict().items()
        }


class Blobs(Problem):
    """Clients with unequal numbers of samples and different class numbers, so that no
    model suits all of them.
    """

    objective = CLASSIFICATION
    num_outputs = 3

    def __init__(self, sizes: Sequence[int] = (60, 25, 40, 33)) -> None:
        self.sizes, self.num_clients = tuple(sizes), len(sizes)

    def model_fn(self, seed: int) -> nn.Module:
        """Return a net with one hidden layer, whose last layer is the head."""
        net: Any = small_net(seed)
        net.head = ("3.",)
        return net  # type: ignore[no-any-return]

    def client_data(self, client_id: int | str, num_clients: int) -> ClientData:
        """Return the client's points."""
        data, turn = blobs(int(client_id), self.sizes[int(client_id)]), int(client_id) % 2
        return ClientData(
            *(
                Split(part.x, (part.y + turn) % 3)
                for part in (data.train, data.validation, data.test)
            )
        )


class Scalar(nn.Module):
    """One weight w. For samples (h, t) the output is (w, h, t), the input of the loss
    of ``Quadratics``.
    """

    head = ()

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, 3)."""
        return torch.cat([self.w.expand(len(x), 1), x], 1)


def _quadratic(outputs: Tensor, y: Tensor) -> Tensor:
    w, curvature, target = outputs.unbind(1)
    return (curvature / 2 * (w - target) ** 2).mean()


class Quadratics(Problem):
    """Client i has one sample and the loss h_i / 2 (w - t_i)^2; a run starts from w =
    ``start``.
    """

    objective = Objective(
        _quadratic,
        lambda net, data: {"accuracy": 0.0, "loss": _quadratic(net(data.x), data.y).item()},
    )
    num_outputs = 3

    def __init__(
        self,
        curvatures: Sequence[float] = (1.0, 10.0),
        targets: Sequence[float] = (0.0, 1.0),
        start: float = 5.0,
    ) -> None:
        self.curvatures, self.targets, self.start = tuple(curvatures), tuple(targets), start
        self.num_clients = len(self.targets)

    def model_fn(self, seed: int) -> nn.Module:
        """Return the weight, 0."""
        return Scalar()

    def client_data(self, client_id: int | str, num_clients: int) -> ClientData:
        """Return the client's sample as training, validation and test set."""
        one = Split(
            torch.tensor([[self.curvatures[int(client_id)], self.targets[int(client_id)]]]),
            torch.zeros(1, dtype=torch.int64),
        )
        return ClientData(one, one, one)

    def initial_arrays(self) -> Named:
        """Return the weight that a run starts from."""
        return {"w": np.array([self.start], np.float32)}

    def averaged(self, rate: float, steps: int) -> float:
        """Return the point to which FedAvg converges with K = ``steps`` gradient steps
        per round.

        K steps leave (1 - rate h)^K of the distance to a client's target, so the weight
        of a target is 1 - (1 - rate h)^K.
        """
        pull = [1 - (1 - rate * h) ** steps for h in self.curvatures]
        return sum(p * t for p, t in zip(pull, self.targets, strict=True)) / sum(pull)

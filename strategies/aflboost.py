"""AFLBoost: FedBoost for the worst-case mixture of clients. Every client is a domain
whose weight lambda_k rises with its loss.

Source: Hamer, Mohri, Suresh, "FedBoost: Communication-Efficient Algorithms for
Federated Learning", ICML 2020, Figure 2. Mirror descent in alpha on ``sum_k lambda_k
L_k``, mirror ascent in lambda; with partial participation only the observed coordinates
of the lambda-gradient are non-zero, scaled by the number of domains over that of
observed domains. lambda_k is not multiplied by m_j / m.

Contract: FedBoost's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedapps.algorithms.common.mirror import MIRRORS
from fedapps.algorithms.common.options import option
from fedapps.algorithms.fairness.responses import cut
from fedapps.strategies.base.messages import to_record
from fedapps.strategies.base.named_grid import ClientId, clients_of
from fedapps.strategies.base.slots import pack_ids, unpack_ids
from fedapps.strategies.families.predictor_replies import PredictorLibrary, Reply
from fedapps.strategies.fedavg import FedAvgArguments
from fedapps.strategies.fedboost import FedBoost, FedBoostOptions, Floats


@dataclass(frozen=True)
class AFLBoostOptions(FedBoostOptions):
    """Options of AFLBoost: those of FedBoost and of the client weights lambda."""

    lambda_step: float = option(0.01, "step of the clients' weights lambda", low=0, open_low=True)
    lambda_min: float = option(
        0.0, "floor of the clients' weights lambda, at most 1 / number of clients", low=0, high=1
    )


class AFLBoost(FedBoost):
    """AFLBoost strategy; arguments as in FedBoost."""

    def __init__(
        self,
        library: PredictorLibrary | Callable[[Mapping[str, NDArray[Any]]], PredictorLibrary],
        options: AFLBoostOptions | None = None,
        seed: int = 0,
        loss: str = "log",
        **kwargs: Unpack[FedAvgArguments],
    ) -> None:
        self.lambda_options: AFLBoostOptions = options or AFLBoostOptions()
        super().__init__(library, self.lambda_options, seed, loss, **kwargs)
        self.domains: list[ClientId] = []
        self._names: Mapping[int, ClientId] = {}
        self.lambda_: Floats = np.zeros(0)
        self.lambda_average: Floats = np.zeros(0)
        self.loss_scale = 0.0  # as in strategies/families/reweighting.py

    def privacy_fault(self) -> str:
        """Return the reason: the client weights depend on the losses."""
        return "AFLBoost weights clients by their losses, which are not private: choose fedboost"

    def meet(self, grid: Grid) -> None:
        """Initialise lambda uniformly; a domain that joins later starts at the mean."""
        self._names = clients_of(grid)
        new = [client for client in self._names.values() if client not in self.domains]
        if new:
            for name in ("lambda_", "lambda_average"):
                old: Floats = getattr(self, name)
                grown = np.concatenate([old, np.full(len(new), old.mean() if len(old) else 1.0)])
                setattr(self, name, grown / grown.sum())
            self.domains += new
            if self.lambda_options.lambda_min * len(self.domains) > 1:
                n, least = len(self.domains), self.lambda_options.lambda_min
                raise ValueError(f"lambda-min = {least}: choose at most {1 / n:g} for {n} clients")

    def shares(self, replies: Sequence[Reply]) -> list[float]:
        """Return lambda_k of each reply, scaled by domains over observed domains; then
        make an ascent step of lambda.
        """
        places = [self.domains.index(self._names[reply.node]) for reply in replies]
        scale = len(self.domains) / len(set(places))
        counts = np.bincount(places, minlength=len(self.domains))
        shares = [float(self.lambda_[k]) * scale / counts[k] for k in places]
        losses = np.zeros(len(self.domains))
        own, self.loss_scale = cut([max(reply.loss, 0.0) for reply in replies], self.loss_scale)
        for k, reply, most in zip(places, replies, own, strict=True):
            losses[k] += scale * min(reply.loss, most) / counts[k]
        o = self.lambda_options
        self.lambda_average += (self.lambda_ - self.lambda_average) / (self.steps + 1)
        self.lambda_ = MIRRORS[o.mirror](self.lambda_, -losses, o.lambda_step, floor=o.lambda_min)
        return shares

    def model(self) -> ArrayRecord:
        """Return alpha^A, alpha, lambda^A and lambda."""
        names = ["alpha", "alpha-last", "lambda", "lambda-last"]
        return to_record(names, [self.average, self.alpha, self.lambda_average, self.lambda_])

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return FedBoost's state, lambda, its running average and the domains in
        order.
        """
        return {
            **super().state_dict(),
            "lambda": self.lambda_,
            "lambda-average": self.lambda_average,
            "domains": pack_ids(self.domains),
            "loss-scale": np.array(self.loss_scale),
        }

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned."""
        super().load_state_dict(state)
        self.lambda_, self.lambda_average = state["lambda"], state["lambda-average"].copy()
        self.domains = unpack_ids(state["domains"])
        self.loss_scale = float(state.get("loss-scale", 0.0))

"""IFCA's client: trains and uses the one of the received models that has the least loss
on its training samples. Source and contract: ``strategies/ifca.py``.
"""

import math
from types import MappingProxyType
from typing import Any

import numpy as np

from fedapps.algorithms.contract.sent import IFCASent
from fedapps.clients.base.training import Arrays, Config, set_arrays
from fedapps.clients.families.personal_model import PersonalClient


class IFCAClient(PersonalClient):
    """FedAvg's client on the model of its cluster.

    After an evaluation it stores that model, for exports.
    """

    kept_as = "ifca"
    whole = MappingProxyType(IFCASent(1).to_config())
    reads = (IFCASent,)
    differentiates_surrogate = True
    needs_all_steps = ""

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, dict[str, Any]]:
        """Return the trained model of the chosen cluster, and the cluster."""
        cluster, model = self.choose(parameters, config)
        arrays, number, metrics = super().fit(model, config)
        return arrays, number, {**metrics, "cluster": cluster}

    def evaluate(self, parameters: Arrays, config: Config) -> tuple[float, int, dict[str, Any]]:
        """Return the metrics of the chosen cluster's model."""
        cluster, model = self.choose(parameters, config)
        set_arrays(self.model, model)
        scores = self.score(self.data.test)
        if IFCASent.from_config(config).clusters > 1:
            self.store.save(self.kept_as, model, config)
        return scores["loss"], len(self.data.test), {**scores, "cluster": cluster}

    def choose(self, parameters: Arrays, config: Config) -> tuple[int, Arrays]:
        """Return the number and the arrays of the model with the least mean loss on the
        training samples, of equal ones the first. A loss that is not finite is the
        greatest.
        """
        models = self.models(parameters, config)
        if len(models) == 1:
            return next(iter(models.items()))
        losses = {}
        for cluster, arrays in models.items():
            set_arrays(self.model, arrays)
            loss = self.mean_loss(self.data.train)
            losses[cluster] = loss if math.isfinite(loss) else math.inf
        best = min(losses, key=lambda cluster: losses[cluster])
        return best, models[best]

    def models(self, parameters: Arrays, config: Config) -> dict[int, Arrays]:
        """Return all models by cluster: as received, else as initialised. Raises
        ``ValueError`` if those all start from the same point.
        """
        sent, size = IFCASent.from_config(config), len(self.model.state_dict())
        models = {
            cluster: parameters[at * size : (at + 1) * size]
            for at, cluster in enumerate(sent.sent)
            if (at + 1) * size <= len(parameters)  # a new client that trained has one model
        }
        if missing := [j for j in range(sent.clusters) if j not in sent.sent]:
            fresh = {j: self.fresh_arrays(f"cluster {j}", config, own=False) for j in missing}
            other = self.fresh_arrays("cluster 0", config, own=False)
            if any(same(arrays, other) for arrays in fresh.values()):
                raise ValueError(
                    "ifca.start = 'random': this net starts at the same point from every seed, so "
                    "all clusters would be one: choose ifca.start=diverse"
                )
            models |= fresh
        return dict(sorted(models.items()))


def same(one: Arrays, other: Arrays) -> bool:
    """Return whether all arrays are equal."""
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))

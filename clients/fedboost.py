"""FedBoost's and AFLBoost's client: the loss of an ensemble on its samples, and the
gradient in the ensemble's weights.

Stateless unless it caches predictors; the computations are in
``clients/families/ensemble_data.py``.

Source: Hamer, Mohri, Suresh, "FedBoost: Communication-Efficient Algorithms for
Federated Learning", ICML 2020, Figure 1, line 5.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from flwr.app import RecordDict
from flwr.client import NumPyClient
from numpy.typing import NDArray

from fedapps.algorithms.common.averaging import Arrays
from fedapps.algorithms.contract.sent import CollectingSent, DrawSent, MixturesSent, PredictorsSent
from fedapps.algorithms.ensembles.predictor_cache import remember
from fedapps.algorithms.ensembles.sparse_tables import is_packed, unpack
from fedapps.clients.base.options import Config
from fedapps.clients.base.store import MessageStore, Store


class EnsembleData(Protocol):
    """A client's samples, on which an ensemble is trained and evaluated."""

    @property
    def num_examples(self) -> int:
        """The number of training samples."""

    @property
    def num_test(self) -> int:
        """The number of test samples."""

    def loss_and_gradient(
        self, predictors: dict[str, NDArray[Any]], alpha: NDArray[Any]
    ) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
        """Return the loss, its gradient (h,) with respect to alpha and the mean squared
        norms (h,), on the training samples.
        """

    def train_predictor(self, config: Config) -> dict[str, NDArray[Any]]:
        """Return the arrays of one predictor trained on the training samples, by
        name.
        """

    def score(self, predictors: dict[str, NDArray[Any]], alpha: NDArray[Any]) -> Mapping[str, Any]:
        """Return metrics on the test samples, including ``loss``."""


class FedBoostClient(NumPyClient):
    """Client of FedBoost and AFLBoost. ``store`` holds the cache of received
    predictors, if the server asks for one.
    """

    reads = (CollectingSent, PredictorsSent, DrawSent, MixturesSent)

    def __init__(self, data: EnsembleData, store: Store | None = None) -> None:
        self.data = data
        self.store = store if store is not None else MessageStore(RecordDict())

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, dict[str, Any]]:
        """Return gradient and squared norms at the received weights; with ``library =
        "clients"`` first a trained predictor.
        """
        if CollectingSent.from_config(config).phase == "train-predictor":
            predictor = self.data.train_predictor(config)
            return (
                list(predictor.values()),
                self.data.num_examples,
                {"predictor-arrays": list(predictor)},
            )
        _, alpha, *arrays = parameters
        names, drawn = PredictorsSent.from_config(config), DrawSent.from_config(config)
        predictors = dict(zip(names.predictor_arrays, arrays, strict=True))
        if drawn.cache is not None:
            predictors = self.complete(predictors, drawn, drawn.cache, config)
        loss, gradient, norms = self.data.loss_and_gradient(predictors, alpha)
        return (
            [gradient, norms],
            self.data.num_examples,
            {"loss": loss, "draw": drawn.draw},
        )

    def complete(
        self, new: dict[str, NDArray[Any]], drawn: DrawSent, size: int, config: Config
    ) -> dict[str, NDArray[Any]]:
        """Return the round's predictors, those that were not sent from the cache;
        update the cache as the server expects.
        """
        hashes, held = list(drawn.hashes or []), list[str]()
        new = {"table": unpack(new)} if is_packed(new) else new
        rows: dict[str, list[NDArray[Any]]] = {
            hashes[i]: [a[j] for a in new.values()] for j, i in enumerate(drawn.new or [])
        }
        if drawn.cache_holds:
            names, *kept = self.store.load("predictors", config, before=True) or [
                np.empty((0, 1), np.uint8)
            ]
            held = [bytes(name).decode() for name in names]
            rows |= {key: [array[i] for array in kept] for i, key in enumerate(held)}
        if missing := [key for key in hashes if key not in rows]:
            raise RuntimeError(
                f"the predictor cache was lost: {len(missing)} of {len(hashes)} predictors are "
                "missing"
            )
        held = remember(held, hashes, size)
        names = np.array([list(key.encode()) for key in held], dtype=np.uint8)
        self.store.save(
            "predictors",
            [
                names,
                *(np.stack(column) for column in zip(*(rows[key] for key in held), strict=True)),
            ],
            config,
        )
        return {name: np.stack([rows[key][i] for key in hashes]) for i, name in enumerate(new)}

    def evaluate(self, parameters: Arrays, config: Config) -> tuple[float, int, dict[str, Any]]:
        """Return the metrics of the full ensemble and of the uniform one."""
        alpha, *arrays = parameters
        predictors = dict(
            zip(PredictorsSent.from_config(config).predictor_arrays, arrays, strict=True)
        )
        # two densities: the ensemble's mixture and the uniform mixture
        if MixturesSent.from_config(config).mixtures:
            one = np.ones(1)
            scores = self.data.score({name: array[:1] for name, array in predictors.items()}, one)
            uniform = self.data.score({name: array[1:] for name, array in predictors.items()}, one)
            scores = {
                name: value
                for name, value in scores.items()
                if not name.startswith(("uniform-", "best-single-"))
            }
            scores |= {f"uniform-{name}": uniform[name] for name in scores}
        else:
            scores = dict(self.data.score(predictors, alpha))
        return scores["loss"], self.data.num_test, scores

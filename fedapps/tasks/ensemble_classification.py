"""Task ``ensemble-classification``: an ensemble of torch classifiers.
``fedapps.tasks.densities`` describes the members of the task.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapps.clients.families.torch_ensemble_data import TorchEnsembleData
from fedapps.data import partition as partitions
from fedapps.data.images import read_samples
from fedapps.data.samples import Samples
from fedapps.errors import UserError
from fedapps.tasks.base_predictors import divide, pretrained, recipes
from fedapps.tasks.classification import Classification
from fedapps.tasks.context import RunContext
from fedapps.tasks.options import EnsembleOptions
from fedapps.tasks.predictor_library import Library


class EnsembleClassification:
    """Images; predictor k is a network trained on some of the labels. Clients hold the
    samples not used for training predictors.

    The predictors may be the user's instead: a folder of weights (``fedboost.library``)
    of the net ``model.name``.
    """

    name = "ensemble-classification"
    from_clients = ""  # the predictors are trained on samples that no client holds

    def __init__(self, options: Any, context: RunContext) -> None:
        self.options: EnsembleOptions = options
        self.context = context
        self.rest = _Rest(options, context)
        self._clients: dict[int | str, TorchEnsembleData] = {}

    def check(self, num_clients: int) -> None:
        """Load and partition the data, build the model and draw the label sets;
        predictors are trained when the run starts.
        """
        self.rest.check(num_clients)
        recipes(self.options, self.rest.samples.num_classes, self.context.seed)

    def library(self) -> Library:
        """Return the trained predictors. Raises ``UserError`` if there are no samples
        to train them on.
        """
        if not self.options.share:
            raise UserError(
                "library = 'task', but with ensemble.share = 0.0 there are no samples to train "
                "nets on: name the folder of yours"
            )
        run = self.context
        return pretrained(self.options, run.data, run.model.name, run.seed, run.split_seed)

    def check_library(self, library: Library) -> None:
        """Raise ``UserError`` unless ``library``, loaded from elsewhere, holds networks
        of the kind ``model.name``.
        """
        state = self.rest.work_model().state_dict()
        shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
        given = {name: shape for name, (_, shape) in library.spec.items()}
        if wrong := [name for name in [*shapes, *given] if given.get(name) != shapes.get(name)]:
            name = wrong[0]
            raise UserError(
                f"library: array {name!r} has shape {given.get(name)}, but model.name = "
                f"{self.context.model.name!r} wants "
                f"{shapes.get(name)}: choose the model that the predictors were trained as"
            )

    def initial_arrays(self) -> dict[str, NDArray[Any]]:
        """Return uniform weights alpha (q,)."""
        return {"alpha": np.full(self.options.predictors, 1 / self.options.predictors)}

    def client_data(self, client_id: int | str, num_clients: int) -> TorchEnsembleData:
        """Return a client's training and test samples, with the module in which it
        evaluates predictors.
        """
        if client_id not in self._clients:
            parts = self.rest.client_data(client_id, num_clients)
            o = self.options
            self._clients[client_id] = TorchEnsembleData(
                self.rest.work_model(), parts.train, parts.test, o.loss, o.epsilon
            )
        return self._clients[client_id]


class _Rest(Classification):
    """The samples dealt to the clients: all except those used to train the base
    predictors.
    """

    def read(self) -> Samples:
        whole = partitions.thinned(read_samples(self.context.data), self.context.data)
        return divide(whole, self.options.share, self.context.split_seed)[1]

"""FFGB-distill's client: fits a new network to the functional gradient of its loss at
the server's function, and sends it.

The target at a training point is ``softmax(f_t(x)) - onehot(y)``; the regulariser's
term ``mu f_t`` is known exactly and applied by the server. Every client draws a new
initialisation every round. The weak-learning oracle is Adam with gradient clipping
(``algorithms.boosting.regression``); its relative error is reported as ``oracle-error``
(at most 1 - gamma for an edge gamma).

Source: Shen, Hassani, Kale, Karbasi, "Federated Functional Gradient Boosting", AISTATS
2022, arXiv 2103.06972, Algorithm 2 with K = 1.
"""

from typing import Any

import torch

from fedapps.algorithms.boosting.fit_options import FitOptions
from fedapps.algorithms.boosting.functional import LOSSES, check_labels
from fedapps.algorithms.boosting.regression import fit_network
from fedapps.algorithms.common.modules import outputs_of
from fedapps.algorithms.common.seeds import derived_seed, generator
from fedapps.algorithms.contract.sent import Asked, OracleSent
from fedapps.clients.base.training import Arrays, Config, get_arrays, set_arrays
from fedapps.clients.fedavg import FedAvgClient


class FFGBDistillClient(FedAvgClient):
    """Sends a weak learner instead of an updated model; for classification."""

    excluded_optimizers = dict.fromkeys(
        ("adam", "adamw"), "it has an optimiser of its own: leave it out"
    )
    needs_own_samples = "its clients fit the gradient at their samples as they are"
    reads = (OracleSent,)

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, dict[str, Any]]:
        """Return the weak learner h_i, the number of training samples, the loss of f_t
        on them and the oracle's error.
        """
        set_arrays(self.model, parameters)
        data = self.data.train
        outputs = outputs_of(self.model, data.x)
        check_labels(data.y, outputs.shape[1])
        target = LOSSES["cross-entropy"].gradient(outputs, data.y)
        place = self.draw("learner", config)
        set_arrays(self.model, get_arrays(self.model_fn(derived_seed(*place))))
        sent = OracleSent.from_config(config)
        options = FitOptions(sent.epochs, sent.batch_size, sent.learning_rate)
        fit_network(self.model, data.x, target, options, generator(*place), self.runner(config))
        left = torch.linalg.vector_norm(outputs_of(self.model, data.x) - target)
        # it is 0 if nothing is left to learn
        norm = torch.linalg.vector_norm(target).clamp(min=torch.finfo(target.dtype).tiny)
        loss = float(LOSSES["cross-entropy"].mean(outputs, data.y))
        asked = {"loss-before": loss} if Asked.from_config(config).loss_before else {}
        return (
            get_arrays(self.model),
            len(data),
            {"loss": loss, "oracle-error": float(left / norm), **asked},
        )

"""FENS's client: it trains one predictor, and then takes FedAvg's local steps on the
outputs of all predictors at its samples, which it computes once and stores.

Source: Allouah et al., "Revisiting Ensembling in One-Shot Federated Learning", NeurIPS
2024, arXiv 2411.07182; equations and messages: ``strategies/fens.py``.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils import skip_init

from fedapps.algorithms.contract.sent import CollectingSent, FENSSent, Reads
from fedapps.clients.base.data import ClientData
from fedapps.clients.base.store import Store
from fedapps.clients.base.training import Arrays, Config, TrainOptions
from fedapps.clients.families.torch_ensemble_data import TorchEnsembleData
from fedapps.clients.fedavg import FedAvgClient


class FENSClient(FedAvgClient):
    """FedAvg's client, whose samples are the stacked outputs (n, M C) of the predictors
    and whose net is the aggregator.

    ``ensemble``: the client's own samples, and the net of a predictor. ``training``:
    how it trains its predictor; the options of a message are the aggregator's.
    """

    reads: Reads = (CollectingSent, FENSSent)
    differentiates_surrogate = True
    #: Its reply has the names of the message's first arrays (``clients.base.adapter``).
    replies_first = True

    def __init__(
        self,
        ensemble: TorchEnsembleData,
        training: TrainOptions,
        client_id: int | str = 0,
        store: Store | None = None,
    ) -> None:
        own = ClientData(ensemble.train, ensemble.train, ensemble.test)
        super().__init__(lambda seed: nn.Sequential(), own, client_id, store)
        self.ensemble, self.training_of_predictor = ensemble, training

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, dict[str, Any]]:
        """Return theta after the local steps; in the first round a predictor."""
        if CollectingSent.from_config(config).phase == "train-predictor":
            options = self.training_of_predictor.to_config()
            predictor = self.ensemble.train_predictor({**config, **options})
            named = {"predictor-arrays": list(predictor)}
            return list(predictor.values()), self.ensemble.num_examples, named
        return super().fit(self.opened(parameters, config, before=True), config)

    def evaluate(self, parameters: Arrays, config: Config) -> tuple[float, int, dict[str, Any]]:
        """Return the measures of FedAvg's client, and ``uniform-accuracy``, that of the
        predictors' unweighted mean.
        """
        theta = self.opened(parameters, config, before=False)
        loss, number, metrics = super().evaluate(theta, config)
        test = self.data.test
        mean = test.x.unflatten(1, (-1, len(theta[-1]))).mean(1)
        metrics["uniform-accuracy"] = float((mean.argmax(1) == test.y).double().mean())
        return loss, number, metrics

    def opened(self, parameters: Arrays, config: Config, before: bool) -> Arrays:
        """Return theta, and make the net and the samples of this message: outputs of
        the predictors that it holds, or stored ones (``before``: in an earlier round).
        Raises ``RuntimeError`` if there are neither.
        """
        names = FENSSent.from_config(config).predictors
        theta = parameters[: len(parameters) - len(names)]
        splits = self.ensemble.train, self.ensemble.test
        if names:
            predictors = dict(zip(names, parameters[len(theta) :], strict=True))
            outputs = [
                np.concatenate(list(self.ensemble.probabilities(predictors, split)), 1)
                for split in splits
            ]
            # a predictor of large numbers overflows: it must not take the others' place
            outputs = [np.nan_to_num(rows.astype(np.float32)) for rows in outputs]
            self.store.save("outputs", outputs, config)
        elif (outputs := self.store.load("outputs", config, before) or []) == []:
            raise RuntimeError("the outputs of the predictors were lost: they are to be sent again")
        train, test = (
            replace(split, x=torch.tensor(rows, device=split.y.device))
            for split, rows in zip(splits, outputs, strict=True)
        )
        self.data, self.model = ClientData(train, train, test), aggregator_of(theta)
        self.model.to(train.y.device)
        return theta


def aggregator_of(theta: Arrays) -> nn.Sequential:
    """Return the net of the weights and biases ``theta``: linear layers with ReLU
    between them; their values are not set.
    """
    net = nn.Sequential()
    for weight in theta[::2]:
        outputs, inputs = weight.shape
        net.extend([nn.ReLU()] if len(net) else [])
        net.append(skip_init(nn.Linear, inputs, outputs))
    return net

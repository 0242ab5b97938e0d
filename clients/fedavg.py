"""FedAvg's client: local SGD from the server's model. Base class of the clients that
train a torch model.

The options of local training are sent in the message's configuration
(``clients.base.training.TrainOptions``), with ``seed`` and ``server-round``, which key
the random draws of the round.

Source: McMahan, Moore, Ramage, Hampson, Aguera y Arcas, "Communication-Efficient
Learning of Deep Networks from Decentralized Data", AISTATS 2017, arXiv 1602.05629,
Algorithm 1, ClientUpdate.
"""

from typing import Any

from fedapps.algorithms.common.steps import Tensors
from fedapps.clients.base.training import Arrays, Config, get_arrays, set_arrays, trainable
from fedapps.clients.steps.sgd import Penalty, descent
from fedapps.clients.steps.trained_net import TrainedNet


class FedAvgClient(TrainedNet):
    """Trains and evaluates a torch model on one client's data, as in
    ``clients.base.scored_net.ScoredNet``.
    """

    #: Whether all training of the class differentiates :meth:`surrogate`; a class with
    #: its own training (``trained_net.OWN_TRAINING``) declares it.
    differentiates_surrogate = True
    #: Why a round of the class cannot end after some of its steps; "": it can. A class
    #: with its own training declares it (``why_all_steps``).
    needs_all_steps = ""

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, dict[str, Any]]:
        """Return the locally trained model, the number of training samples and the mean
        training loss.

        If the configuration asks for ``loss-before``, also the training loss of the
        received model.
        """
        set_arrays(self.model, parameters)
        before = self.before(config)
        metrics = self.train_round(config)
        return get_arrays(self.model), len(self.data.train), {**metrics, **before}

    def train_round(self, config: Config) -> dict[str, Any]:
        """Train the received model, in ``self.model``, and whatever else the client
        trains and stores in a round; return the metrics of the training.
        """
        return {"loss": self.train(config)}

    def train(self, config: Config) -> float:
        """Train ``self.model`` in place for one round; return the mean loss over all
        samples seen.
        """
        w, (sgd, rate) = [p.detach() for p in trainable(self.model).values()], self.sgd(config)
        return self.run(*descent(sgd, w, rate, self.penalty(w, config)), config)

    def penalty(self, tensors: Tensors, config: Config) -> Penalty:
        """Return the terms that are added to the gradient; FedAvg adds none.
        ``tensors``: the initial parameters, which training changes in place.
        """
        return Penalty()

"""A client with a net: the net, samples and a store, its random draws, and how the net
is scored; also that of a client that is new, and of a client that exports its model.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from flwr.app import RecordDict
from torch import Tensor, nn

from fedapps.algorithms.common.modules import evaluation_batch, torch_seeded
from fedapps.algorithms.common.seeds import derived_seed
from fedapps.algorithms.common.steps import Tensors
from fedapps.algorithms.contract.sent import Asked, RoundFacts
from fedapps.clients.base.data import ClientData, Split
from fedapps.clients.base.evaluation import CLASSIFICATION, Objective, Scores
from fedapps.clients.base.scores import ScoresValidation, as_global
from fedapps.clients.base.store import MessageStore, Store
from fedapps.clients.base.together import once
from fedapps.clients.base.training import Arrays, Config, get_arrays, set_arrays

ModelFn = Callable[[int], nn.Module]


class ScoredNet(ScoresValidation):
    """Evaluates a torch model on one client's data.

    ``model_fn``: seed -> module (methods with a personal model call it for a second
    one). ``client_id`` keys the client's random draws. ``store``: holds state between
    rounds (default: in this object only). ``model``: the module to work in; clients of
    one process may share it, since it is overwritten before use. ``objective``: loss
    and metrics, by default those of a classifier.
    """

    #: Why forward passes of the class are not taken in bfloat16; "": they can be.
    needs_float32 = ""
    #: The name of the option of an evaluation with the number of epochs for which a
    #: client trains before its model is used; "": it does not train.
    epochs_before_use = ""

    def __init__(
        self,
        model_fn: ModelFn,
        data: ClientData,
        client_id: int | str = 0,
        store: Store | None = None,
        model: nn.Module | None = None,
        objective: Objective = CLASSIFICATION,
    ) -> None:
        self.model_fn = model_fn
        self.data = data
        self.client_id = client_id
        self.store = store if store is not None else MessageStore(RecordDict())
        self.model = model if model is not None else model_fn(0)
        self.objective = objective

    def evaluate(self, parameters: Arrays, config: Config) -> tuple[float, int, dict[str, Any]]:
        """Return loss, number of test samples and metrics of the server's model on the
        local test set.

        If the configuration asks for ``train-loss``, also its loss on the training
        samples.
        """
        set_arrays(self.model, parameters)
        scores = self.score(self.data.test)
        more = (
            {"train-loss": self.score(self.data.train)["loss"]}
            if Asked.from_config(config).train_loss
            else {}
        )
        return scores["loss"], len(self.data.test), {**scores, **as_global(scores), **more}

    def evaluate_new(
        self,
        epochs: int,
        parameters: Arrays,
        config: Config,
        train_parameters: Arrays,
        train_config: Config,
    ) -> tuple[float, int, dict[str, Any]]:
        """Return the result of :meth:`evaluate` for a client without state that first
        trains for this many local epochs (0: none).

        It trains as in a round, but alone: its own reply replaces the received arrays.
        A method whose clients train before use takes that training, for this many
        epochs, instead. ``train_parameters``, ``train_config``: the training message.
        """
        if epochs and self.epochs_before_use:
            config = {**config, self.epochs_before_use: epochs}
        elif epochs:
            sent = self.train_alone(train_parameters, {**train_config, "local-epochs": epochs})
            # a variate beside the model is of no use without a server
            parameters = sent[: len(parameters)] or parameters
        return self.evaluate(parameters, config)

    def train_alone(self, parameters: Arrays, config: Config) -> Arrays:
        """Train as in a round without other clients; return the shared arrays for
        :meth:`evaluate`; no arrays: as received.
        """
        return self.fit(parameters, dict(config))[0]

    def personal_state_dict(
        self, parameters: Arrays, config: Config
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the model that :meth:`evaluate` scores, as a state dict of the net,
        and the metrics.
        """
        _, _, metrics = self.evaluate(parameters, config)
        return self.scored(parameters, config, metrics), metrics

    # --- building blocks for subclasses -----------------------------------------------

    def scored(
        self, parameters: Arrays, config: Config, metrics: dict[str, Any]
    ) -> dict[str, Tensor]:
        """Return a copy of the scored model, after :meth:`evaluate`. Most classes leave
        it in ``self.model``.
        """
        return {
            name: tensor.detach().cpu().clone() for name, tensor in self.model.state_dict().items()
        }

    def before(self, config: Config) -> dict[str, float]:
        """Return ``loss-before`` of the received model if the server asks for it, else
        no metrics.
        """
        asked = Asked.from_config(config).loss_before
        return {"loss-before": self.mean_loss(self.data.train)} if asked else {}

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean training loss of a mini-batch. A class that overrides it
        trains uncompiled.
        """
        return self.objective.loss(self.model(x), y)

    @torch.no_grad()
    def mean_loss(self, data: Split) -> float:
        """Return the mean loss of ``self.model`` over all samples of a split, in
        evaluation mode.
        """
        self.model.eval()
        whole = self.objective.whole
        batch_size = len(data) if whole else evaluation_batch(self.model, data.x)
        total = torch.zeros((), device=data.y.device)
        for x, y in zip(data.x.split(batch_size), data.y.split(batch_size), strict=True):
            total += self.loss(x, y) * len(y)
        return float(total) / len(data)

    def score(self, data: Split) -> Scores:
        """Return the metrics of ``self.model`` on all samples of a split, including
        ``accuracy`` and ``loss``.
        """
        return once(partial(self.objective.score, self.model, data))

    @contextmanager
    def training(self, config: Config, purpose: str = "dropout") -> Iterator[None]:
        """Put ``self.model`` into training mode and, within the context, seed torch's
        global generator, from which dropout draws.
        """
        self.model.train()
        seed = derived_seed(*self.draw(purpose, config))
        with torch_seeded(seed, self.data.train.y.device):
            yield

    def stored(
        self, name: str, what: str, like: Collection[Tensor], config: Config, before: bool
    ) -> Tensors | None:
        """Return the arrays stored under ``name`` as tensors on the devices of
        ``like``, or ``None``. Raises ``ValueError``, which names ``what`` they are, if
        their shapes differ from those of ``like``.
        """
        kept = self.store.load(name, config, before)
        if kept is None:
            return None
        if [a.shape for a in kept] != [tuple(t.shape) for t in like]:
            raise ValueError(
                f"client {self.client_id} has stored a {what} of another architecture: use another "
                "results folder"
            )
        return [torch.tensor(a, device=t.device) for a, t in zip(kept, like, strict=True)]

    def fresh_arrays(self, purpose: str, config: Config, own: bool) -> Arrays:
        """Return a newly initialised model: specific to this client if ``own``, else
        the same for all clients and the server.
        """
        seed = RoundFacts.from_config(config).seed
        return get_arrays(
            self.model_fn(
                derived_seed(seed, purpose, self.client_id) if own else derived_seed(seed, purpose)
            )
        )

    def draw(self, purpose: str, config: Config) -> tuple[int, str, int | str, int]:
        """Return the key of the random draws for a purpose in this round
        (``algorithms.common.seeds``): seed, purpose, client and round.
        """
        facts = RoundFacts.from_config(config)
        return facts.seed, purpose, self.client_id, facts.server_round

    @staticmethod
    def round(config: Config) -> int:
        """Return the server round of a message."""
        return RoundFacts.from_config(config).server_round

"""FedAvg's client: local SGD from the server's model. Base class of the clients that
train a torch model.

The options of local training are sent in the message's configuration
(``clients.base.training.TrainOptions``), with ``seed`` and ``server-round``, which key
the random draws of the round.

Source: McMahan, Moore, Ramage, Hampson, Aguera y Arcas, "Communication-Efficient
Learning of Deep Networks from Decentralized Data", AISTATS 2017, arXiv 1602.05629,
Algorithm 1, ClientUpdate.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from flwr.app import RecordDict
from flwr.client import NumPyClient
from torch import Tensor, nn

from fedapps.algorithms.common.modules import evaluation_batch, torch_seeded
from fedapps.algorithms.common.seeds import derived_seed, generator
from fedapps.algorithms.common.steps import (
    Eager,
    Epochs,
    Numbers,
    Problem,
    Runner,
    State,
    Step,
    Tensors,
    batch_sizes,
    in_batches,
    no_surrogate,
)
from fedapps.algorithms.contract.sent import Asked, PartialWork, Reads, RoundFacts
from fedapps.clients.base.data import ClientData, Split
from fedapps.clients.base.evaluation import CLASSIFICATION, Objective, Scores
from fedapps.clients.base.scores import ScoresValidation, with_half
from fedapps.clients.base.scores import as_global as as_global
from fedapps.clients.base.store import MessageStore, Store
from fedapps.clients.base.together import known, once
from fedapps.clients.base.training import (
    Arrays,
    Config,
    TrainOptions,
    get_arrays,
    set_arrays,
    trainable,
)
from fedapps.clients.steps.batches import epochs
from fedapps.clients.steps.cohorts import Cohorts, by_cohort
from fedapps.clients.steps.partial_work import Part
from fedapps.clients.steps.sgd import Descent, Optimiser, Penalty, optimiser_of

if TYPE_CHECKING:
    from fedapps.clients.steps.compiled import Compiler

ModelFn = Callable[[int], nn.Module]


class FedAvgClient(ScoresValidation, NumPyClient):
    """Trains and evaluates a torch model on one client's data.

    ``model_fn``: seed -> module (methods with a personal model call it for a second
    one). ``client_id`` keys the client's random draws. ``store``: holds state between
    rounds (default: in this object only). ``model``: the module to work in; clients of
    one process may share it, since it is overwritten before use. ``objective``: loss
    and metrics, by default those of a classifier.
    """

    #: Declarations of what the strategy sends (``algorithms.contract.sent``), beside
    #: the round loop's and the options of training; the bases' need not be repeated.
    #: Other keys are logged.
    reads: Reads = (Asked, PartialWork)
    #: Whether all training of the class differentiates :meth:`surrogate`; a class with
    #: its own ``fit`` or ``train`` declares it.
    differentiates_surrogate = True
    #: Why a round of the class cannot end after some of its steps; "": it can. A class
    #: with its own ``fit`` or ``train`` declares it (:func:`why_all_steps`).
    needs_all_steps = ""
    #: Why the class cannot train on augmented samples; "": it can.
    needs_own_samples = ""
    #: Why forward passes of the class are not taken in bfloat16; "": they can be.
    needs_float32 = ""
    #: The values of ``optimizer`` that the class refuses, and why.
    excluded_optimizers: Mapping[str, str] = MappingProxyType({})
    #: The name of the option of an evaluation with the number of epochs for which a
    #: client trains before its model is used; "": it does not train.
    epochs_before_use = ""
    #: Runs local steps as compiled code if the configuration has ``compile = "on"``.
    compiler: "Compiler | None" = None
    #: How far the last training came, if it was asked to end early.
    came: PartialWork | None = None

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

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, dict[str, Any]]:
        """Return the locally trained model, the number of training samples and the mean
        training loss.

        If the configuration asks for ``loss-before``, also the training loss of the
        received model.
        """
        set_arrays(self.model, parameters)
        before = self.before(config)
        loss = self.train(config)
        return get_arrays(self.model), len(self.data.train), {"loss": loss, **before}

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
        return self.fit(parameters, config)[0]

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

    def train(self, config: Config) -> float:
        """Train ``self.model`` in place for one round; return the mean loss over all
        samples seen.
        """
        tensors = [p.detach() for p in trainable(self.model).values()]
        sgd, rate = self.sgd(config)
        penalty = self.penalty(tensors, config)
        step = Descent(sgd, penalty.mu, tuple(c for _, c in penalty.sum()))
        constants = {f"term-{j}": t for j, (t, _) in enumerate(penalty.sum())}
        return self.run(
            step,
            {"w": tensors, "velocity": sgd.velocity(tensors)},
            constants,
            lambda _: {"rate": rate},
            config,
        )

    def sgd(self, config: Config) -> tuple[Optimiser, float]:
        """Return the optimiser of the configuration and the round's learning rate.
        Raises ``ValueError`` for one that the method excludes.
        """
        options = TrainOptions.from_config(config)
        if why := self.excluded_optimizers.get(options.optimizer):
            raise ValueError(f"optimizer = {options.optimizer!r}: {why}")
        return optimiser_of(options), options.rate(self.round(config))

    def run(
        self,
        step: Step,
        state: State,
        constants: State,
        numbers: Callable[[int], Numbers],
        config: Config,
        samples: Epochs | None = None,
        problem: Problem | None = None,
    ) -> float:
        """Take the step (``algorithms.common.steps``) with every mini-batch of the
        round; return the mean loss over all samples seen.

        ``samples``: the epochs that are cut into mini-batches, by default those of the
        round, of which the message may ask for a part (:attr:`came`). ``problem``: by
        default :meth:`problem`.
        """
        options, work = TrainOptions.from_config(config), PartialWork.from_config(config)
        problem, part = problem or self.problem(config), None
        runner = self.runner(config)
        timed = work.seconds is not None
        if (
            runner is Eager
            and not timed
            and by_cohort(problem, step, options.batch_size, len(self.data.train))
        ):
            runner = Cohorts
        if work.to_config() and samples is None and not why_all_steps(type(self)):
            part = Part(work, len(self.data.train), options, self.model, runner.at_once)
        # Closed after an error, too: else torch's generator is set back when the error
        # is let go, in the midst of another's draws.
        with closing(self.epochs(options, config) if samples is None else samples) as source:
            before = known() if runner is Cohorts else None
            if before is not None:  # the call is made again
                total, seen = before.written(state)
            else:
                drawn = part.of(source) if part else source
                total, seen = runner.run(
                    problem, step, state, constants, numbers, drawn, options.batch_size
                )
        self.came = part.came(seen) if part else None
        return total / seen if seen else 0.0

    def runner(self, config: Config) -> Runner:
        """Return the runner of steps that are taken alone: the compiler if the
        configuration asks for it.
        """
        compiler = self.compiler if TrainOptions.from_config(config).compile == "on" else None
        return compiler or Eager

    def problem(self, config: Config) -> Problem:
        """Return the problem that the client minimises."""
        plain = type(self).loss is FedAvgClient.loss
        criterion = self.objective.loss if plain else None
        by_sample = plain and self.objective.by_sample
        return Problem(self.model, self.loss, self.surrogate(config), criterion, by_sample)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean training loss of a mini-batch. A class that overrides it
        trains uncompiled.
        """
        return self.objective.loss(self.model(x), y)

    def surrogate(self, config: Config) -> Callable[[Tensor], Tensor]:
        """Return the function of a mini-batch's loss that is differentiated; for
        FedAvg, the loss itself. Equal functions compare equal.
        """
        return no_surrogate

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
        return once(lambda: with_half(partial(self.objective.score, self.model), data))

    def penalty(self, tensors: Tensors, config: Config) -> Penalty:
        """Return the terms that are added to the gradient; FedAvg adds none.
        ``tensors``: the initial parameters, which training changes in place.
        """
        return Penalty()

    def epochs(self, options: TrainOptions, config: Config) -> Epochs:
        """Yield the epochs (x, y) of the round, with ``self.model`` in training mode
        and torch's generator seeded.
        """
        rng = generator(*self.draw("batches", config))
        with self.training(config):
            yield from epochs(self.data.train, options, rng)

    @contextmanager
    def training(self, config: Config, purpose: str = "dropout") -> Iterator[None]:
        """Put ``self.model`` into training mode and, within the context, seed torch's
        global generator, from which dropout draws.
        """
        self.model.train()
        seed = derived_seed(*self.draw(purpose, config))
        with torch_seeded(seed, self.data.train.y.device):
            yield

    def batches(self, options: TrainOptions, config: Config) -> Epochs:
        """Yield the mini-batches (x, y) of these epochs; the last of an epoch may be
        smaller.
        """
        return in_batches(self.epochs(options, config), options.batch_size, self.model)

    def steps_of(self, options: TrainOptions) -> int:
        """Return the number of steps of a round."""
        sizes = batch_sizes(self.data.train.x, options.batch_size, self.model)
        return len(sizes) * options.local_epochs

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


def why_all_steps(kind: type[FedAvgClient]) -> str:
    """Return why a round of a class of clients cannot end early; "" if it can."""
    for base in kind.__mro__:
        if "needs_all_steps" in vars(base):
            return str(vars(base)["needs_all_steps"])
        if {"fit", "train"} & vars(base).keys():
            break
    return (
        f"{base.__name__} has its own training, which does not declare that it may end after some "
        "of its steps (needs_all_steps)"
    )

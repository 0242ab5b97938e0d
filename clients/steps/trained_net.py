"""A client that trains its net: the local steps of a round, as its message says.
``clients.steps`` says what a step is.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from types import MappingProxyType
from typing import TYPE_CHECKING

from torch import Tensor

from fedapps.algorithms.common.schedule import passes
from fedapps.algorithms.common.seeds import generator
from fedapps.algorithms.common.steps import (
    Eager,
    Epochs,
    Moving,
    Problem,
    Runner,
    State,
    Step,
    batch_sizes,
    in_batches,
    no_numbers,
    no_surrogate,
)
from fedapps.algorithms.contract.sent import Asked, PartialWork, Reads
from fedapps.clients.base.scored_net import ScoredNet
from fedapps.clients.base.training import Config, TrainOptions
from fedapps.clients.steps.batches import epochs
from fedapps.clients.steps.cohorts import Cohorts, by_cohort
from fedapps.clients.steps.partial_work import Part
from fedapps.clients.steps.sgd import Optimiser, optimiser_of

if TYPE_CHECKING:
    from fedapps.clients.steps.compiled import Compiler

#: Methods of clients, of which a class that has its own trains in its own way.
OWN_TRAINING = frozenset({"fit", "train", "train_round"})


class TrainedNet(ScoredNet):
    """Takes local steps; a subclass says which, and what it sends."""

    #: Declarations of what the strategy sends (``algorithms.contract.sent``), beside
    #: the round loop's and the options of training; the bases' need not be repeated.
    #: Other keys are logged.
    reads: Reads = (Asked, PartialWork)
    #: Why the class cannot train on augmented samples; "": it can.
    needs_own_samples = ""
    #: The values of ``optimizer`` that the class refuses, and why.
    excluded_optimizers: Mapping[str, str] = MappingProxyType({})
    #: Runs local steps as compiled code if the configuration has ``compile = "on"``.
    compiler: "Compiler | None" = None
    #: How far the last training came, if it was asked to end early.
    came: PartialWork | None = None

    def run(
        self,
        step: Step,
        state: State,
        config: Config,
        samples: Epochs | None = None,
        problem: Problem | None = None,
        moving: Moving = no_numbers,
    ) -> float:
        """Take the step (``algorithms.common.steps``) with every mini-batch of the
        round; return the mean loss over all samples seen.

        ``samples``: the epochs that are cut into mini-batches, by default those of the
        round, of which the message may ask for a part (:attr:`came`). ``problem``: by
        default :meth:`problem`. ``moving``: the numbers that change (``Runner.run``).
        """
        options, work = TrainOptions.from_config(config), PartialWork.from_config(config)
        problem, part = problem or self.problem(config), None
        runner = self.runner(config)
        timed, count = work.seconds is not None, len(self.data.train)
        if runner is Eager and not timed and by_cohort(problem, step, options.batch_size, count):
            runner = Cohorts
        if work.to_config() and samples is None and not why_all_steps(type(self)):
            part = Part(work, count, options, self.model, runner.at_once)
        # Closed after an error, too: else torch's generator is set back when the error
        # is let go, in the midst of another's draws.
        with closing(self.epochs(options, config) if samples is None else samples) as source:
            drawn = part.of(source) if part else source
            total, seen = runner.run(problem, step, state, drawn, options.batch_size, moving)
        self.came = part.came(seen) if part else None
        return total / seen if seen else 0.0

    def sgd(self, config: Config) -> tuple[Optimiser, float]:
        """Return the optimiser of the configuration and the round's learning rate.
        Raises ``ValueError`` for one that the method excludes.
        """
        options = TrainOptions.from_config(config)
        if why := self.excluded_optimizers.get(options.optimizer):
            raise ValueError(f"optimizer = {options.optimizer!r}: {why}")
        return optimiser_of(options), options.rate(self.round(config))

    def runner(self, config: Config) -> Runner:
        """Return the runner of steps that are taken alone: the compiler if the
        configuration asks for it.
        """
        compiler = self.compiler if TrainOptions.from_config(config).compile == "on" else None
        return compiler or Eager

    def problem(self, config: Config) -> Problem:
        """Return the problem that the client minimises."""
        plain = type(self).loss is ScoredNet.loss
        criterion = self.objective.loss if plain else None
        by_sample = plain and self.objective.by_sample
        return Problem(self.model, self.loss, self.surrogate(config), criterion, by_sample)

    def surrogate(self, config: Config) -> Callable[[Tensor], Tensor]:
        """Return the function of a mini-batch's loss that is differentiated; by
        default, the loss itself. Equal functions compare equal.
        """
        return no_surrogate

    def epochs(self, options: TrainOptions, config: Config) -> Epochs:
        """Yield the epochs (x, y) of the round, with ``self.model`` in training mode
        and torch's generator seeded.
        """
        rng = generator(*self.draw("batches", config))
        with self.training(config):
            yield from epochs(self.data.train, options, rng)

    def batches(self, options: TrainOptions, config: Config) -> Epochs:
        """Yield the mini-batches (x, y) of these epochs; the last of an epoch may be
        smaller.
        """
        return in_batches(self.epochs(options, config), options.batch_size, self.model)

    def steps_of(self, options: TrainOptions) -> int:
        """Return the number of steps of a round."""
        x, size = self.data.train.x, options.batch_size
        whole, rest = passes(options.local_epochs, len(x), size)
        return whole * len(batch_sizes(x, size, self.model)) + -(-rest // size)


def why_all_steps(kind: type[TrainedNet]) -> str:
    """Return why a round of a class of clients cannot end early; "" if it can."""
    for base in kind.__mro__:
        if "needs_all_steps" in vars(base):
            return str(vars(base)["needs_all_steps"])
        if OWN_TRAINING & vars(base).keys():
            break
    return (
        f"{base.__name__} has its own training, which does not declare that it may end after some "
        "of its steps (needs_all_steps)"
    )

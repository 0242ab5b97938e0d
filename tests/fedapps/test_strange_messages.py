"""One client of every method sends hundreds of strange replies: each is skipped or
harmless, and none ends the run.

Replies pass the client grid before the strategies get them, as in a run. The replies of
two real rounds are mutated (``tests/strange.py``), one client's at a time, and
aggregated by a copy of the strategy.
"""

import copy
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord

from fedapps.engines.inline import InlineGrid
from fedapps.methods import METHODS
from fedapps.records.measures import mean_curves, summarise
from fedapps.runs.assembly import build_strategy, build_task
from fedapps.runs.client_app import app
from fedapps.settings.reading import chosen, read_settings
from fedapps.strategies.base.client_grid import ClientGrid
from fedapps.strategies.base.rounds import run_rounds
from fedapps.tasks.registry import TASKS
from tests.strange import mutate

pytestmark = pytest.mark.slow

SMALL = {
    "num-clients": 4,
    "clients-per-round": 0,
    "num-rounds": 2,
    "evaluate-every": 1,
    "checkpoint-every": 0,
    "data.partition": "iid",
}
SMALL |= {
    "train.local-epochs": 1,
    "ffgb.fit-steps": 5,
    "ffgb-distill.oracle-epochs": 2,
    "ffgb-distill.distill-epochs": 1,
    "synthetic.steps": 5,
}
CASES = {
    **{method: {} for method in METHODS},
    "fedboost clients": {"fedboost.library": "clients", "task": "unigram"},
    "fedboost private": {"dp.noise-multiplier": 1.0},
    "fedboost bounded": {"max-update-norm": 1.0, "on-large-update": "clip"},
    "fedavg private": {"dp.noise-multiplier": 1.0},
    "fedadam bounded": {"max-update-norm": 1.0, "on-large-update": "clip"},
    "fedfw partial": {"clients-per-round": 2},
    "fedbuff": {"fedbuff.buffer": 4},  # all replies are in the round in which they come
}
#: Fewer where the server trains a net in every trial.
TRIALS, FEW = 25, dict.fromkeys(("ffgb-distill", "fedavg-distill", "warm-start", "feddm"), 2)


class Strange(ClientGrid):
    """A client grid that tries mutated replies on copies of ``strategy`` before it
    returns the true ones.
    """

    strategy = None
    trials = TRIALS
    tried = used = 0

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        replies = list(self.grid.send_and_receive(messages, timeout=timeout)) if messages else []
        for _ in range(self.trials if replies else 0):
            self.tried += 1
            rng = np.random.default_rng(self.tried)
            victim = rng.integers(len(replies))
            mutants = [copy.copy(reply) for reply in replies]
            for i, mutant in enumerate(mutants):
                mutant.content = (
                    mutate(replies[i].content, rng)
                    if i == victim
                    else copy.deepcopy(replies[i].content)
                )
            self.try_out(messages, mutants)
        return through(self, messages, replies)

    def try_out(self, messages, mutants):
        shadow = copy.copy(self)
        valid = through(shadow, messages, mutants)
        library = getattr(self.strategy, "library", None)  # large, and never modified
        twin = copy.deepcopy(self.strategy, {id(library): library})
        config = next(iter(messages[0].content.config_records.values()))
        self.used += len(valid) == len(mutants)
        assert len(valid) >= len(mutants) - 1, [f.reason for f in shadow.last.failures]
        if messages[0].metadata.message_type == "evaluate" or config.get("phase") == "evaluate":
            twin.aggregate_evaluate(config["server-round"], valid)
            summarise(shadow.last.metrics)
            mean_curves(shadow.last.metrics)
        elif (arrays := twin.aggregate_train(config["server-round"], valid)[0]) is not None:
            assert all(np.isfinite(array.numpy()).all() for array in arrays.values())


def through(client_grid, messages, replies):
    """Return the replies that pass the client grid."""
    canned = SimpleNamespace(
        send_and_receive=lambda *_, **__: replies,
        push_messages=lambda messages: [message.metadata.message_id for message in messages],
        pull_messages=lambda _: replies,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_grid, "grid", canned)
        return ClientGrid.send_and_receive(client_grid, messages)


@pytest.mark.parametrize("case", CASES)
def test_no_reply_of_one_client_ends_a_run(case):
    method = case.partition(" ")[0]
    given = {**METHODS[method].defaults, **SMALL, **CASES[case], "method": method}
    kind = TASKS[chosen(given)[1]]
    if kind.data is not None and "partition" not in kind.data:
        del given["data.partition"]
    settings = read_settings({**kind.defaults, **given})
    task = build_task(settings)
    client_grid = Strange(
        InlineGrid(app, 4, settings.flat()),
        num_clients=4,
        clients_per_round=settings.clients_per_round,
    )
    client_grid.rules.bound = settings.bound
    client_grid.strategy = build_strategy(settings, task)
    client_grid.trials = FEW.get(method, TRIALS)
    first = getattr(client_grid.strategy, "first_arrays", task.initial_arrays)
    arrays = ArrayRecord({name: Array(value) for name, value in first().items()})
    config = ConfigRecord(
        {"seed": 0, "first-round": 1, "checkpoint-round": 0, **settings.train.to_config()}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # an overflow is a number that should not have got so far
        # four of them request data before the first step
        rounds = 8 if method == "dfw-trace" else 2
        run_rounds(client_grid.strategy, client_grid, arrays, rounds, 60, config, config)
    assert client_grid.tried >= 3 * client_grid.trials
    assert client_grid.used < client_grid.tried  # the mutations have an effect

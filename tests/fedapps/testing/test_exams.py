"""The exams offered to others: our methods pass, and each exam fails for a method that
does what it forbids.
"""

import itertools

import numpy as np
import pytest

from fedapps.clients import DittoClient, FedAvgClient
from fedapps.strategies import Ditto, DittoOptions, FedAdam, FedAvg, FedProxOptions, TERMOptions
from fedapps.strategies.base.capabilities import Capabilities
from fedapps.testing import exams
from fedapps.testing.problems import Quadratics

OURS = ["fedavg", "fedadam", "scaffold", "superfed-mm", "term", "propfair"]
FEDAVG = exams.pair("fedavg")


def of(strategy=FedAvg, client=FedAvgClient):
    """Return a pair without an entry in the table of methods."""
    return exams.Pair(
        lambda problem: strategy(),
        lambda problem, i, n, store: client(
            problem.model_fn,
            problem.client_data(i, n),
            i,
            store,
            problem.work_model(),
            problem.objective,
        ),
    )


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("fedprox", FedProxOptions(mu=0.0)),
        ("term", TERMOptions(lambda_=0.0, prior="samples")),
        ("fedavg", None),
    ],
)
def test_with_neutral_options_they_are_fedavg(method, options):
    exams.reduces(exams.pair(method, options), of(), tolerance=1e-4)


def test_they_find_the_known_points():
    for steps in (1, 5):
        exams.finds(FEDAVG, Quadratics().averaged(0.02, steps), local_epochs=steps, num_rounds=75)
    pull = [h / (h + 0.5) for h in (1.0, 10.0)]  # the proximal problems' solutions
    exams.finds(
        exams.pair("fedprox", FedProxOptions(mu=0.5)),
        (pull[0] * 0.0 + pull[1] * 1.0) / sum(pull),
        num_rounds=10,
        local_epochs=60,
        learning_rate=0.1,
    )


@pytest.mark.parametrize("method", ["fedavg", "fedadam", "scaffold", "feddyn", "fedprox", "term"])
def test_what_suits_all_stays(method):
    exams.stays(exams.pair(method))


def test_halves_from_elsewhere_are_examined_alike():
    exams.every(of(lambda: Ditto(DittoOptions()), DittoClient))


# --- each exam fails where it must ----------------------------------------------------


class Forgetful(FedAdam):
    """Saves nothing."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        assert state == {}


class Moody(FedAvgClient):
    """Its draws do not follow from the run's seed."""

    counter = itertools.count()

    def fit(self, parameters, config):
        return super().fit(parameters, {**config, "seed": next(self.counter)})


class Hasty(FedAvg):
    """Counts the first reply twice."""

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        return super().aggregate_train(
            server_round, [*replies, min(replies, key=lambda reply: reply.metadata.created_at)]
        )


class Trusting(FedAvg):
    """Takes replies of any form, so that nobody checks theirs, and cuts what is too
    long.
    """

    capabilities = Capabilities("other", "single replies")

    def configure_train(self, server_round, arrays, config, grid):
        self.sent = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        contents = [next(iter(reply.content.array_records.values())) for reply in replies]
        mean = {}
        for name, old in self.sent.items():
            size, shape = old.numpy().size, old.numpy().shape
            mean[name] = np.mean(
                [content[name].numpy().ravel()[:size].reshape(shape) for content in contents],
                axis=0,
            )
        return exams._record(mean), None


class Drifting(FedAvgClient):
    """Decays the weights whatever the configuration."""

    def fit(self, parameters, config):
        arrays, n, metrics = super().fit(parameters, config)
        return [0.99 * array for array in arrays], n, metrics


def test_a_state_that_a_file_changes_is_seen():
    class Wide(FedAvg):
        def state_dict(self):
            return {"step": np.array([1.0], np.float32)[::1], "label": np.zeros(2, np.int64)}

        def load_state_dict(self, state):
            assert state["step"].dtype == np.float32

    exams.resumes(of(Wide))


DRIFTING = of(client=Drifting)


@pytest.mark.parametrize(
    ("exam", "message"),
    [
        (
            lambda: exams.resumes(of(Forgetful)),
            r"a run that was resumed after round 2 ends with another '1\.weight'",
        ),
        (
            lambda: exams.repeats(of(client=Moody)),
            "a second run with the same seed ends with another",
        ),
        (lambda: exams.repeats(of(Hasty)), "whose replies arrive in reverse order"),
        (
            lambda: exams.survives(of(Trusting), lies=["of another shape"]),
            "a client's reply was of another shape, instead of missing",
        ),
        (
            lambda: exams.stays(DRIFTING),
            r"the model moves from 2, the optimum of all clients, to 1\.9",
        ),
        (lambda: exams.reduces(DRIFTING, FEDAVG), "differs"),
        (
            lambda: exams.finds(DRIFTING, Quadratics().averaged(0.02, 5)),
            r"the model ends at .*, not at 0\.87",
        ),
        (
            lambda: exams.reduces(FEDAVG, FEDAVG, local_epochs=1, learning_rate=1e-45),
            "the other method did not change the model",
        ),
    ],
)
def test_each_exam_fails_where_it_must(exam, message):
    with pytest.raises(AssertionError, match=message):
        exam()

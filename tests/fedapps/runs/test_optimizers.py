"""``train.optimizer``: by name, in a run; methods that it does not fit refuse it before
anything starts.
"""

import pytest

from fedapps.errors import UserError
from fedapps.lab.api import run
from fedapps.runs.prepare import assemble, with_defaults

SMALL = {"num-clients": 6, "num-rounds": 1, "clients-per-round": 3, "checkpoint-every": 0}


def prepared(**given):
    return assemble(with_defaults({**SMALL, **{k.replace("__", "."): v for k, v in given.items()}}))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"method": "scaffold"}, "method 'scaffold': SCAFFOLD reads the mean gradient"),
        ({"method": "propfair"}, "Adam divides gradients by their size"),
        ({"method": "q-fedavg"}, "q-FedAvg takes L from the learning rate"),
        ({"method": "ffgb-distill"}, "it has an optimiser of its own"),
        ({"method": "fedfw"}, "its clients do not take such steps"),
        (
            {"method": "warm-start", "warm-start.first": "fedavg", "warm-start.then": "scaffold"},
            "method 'scaffold'",
        ),
    ],
)
def test_a_method_that_needs_sgd_refuses_adam_at_once(given, why):
    with pytest.raises(UserError, match=r"train\.optimizer = 'adam': .*" + why):
        prepared(train__optimizer="adam", **given)


def test_the_default_optimizer_suits_every_method():
    prepared(method="scaffold")
    prepared(method="fedfw")


def test_the_rate_that_a_task_has_for_sgd_is_not_adams():
    settings = with_defaults({"task": "tabular", "train.optimizer": "adamw"})
    assert (settings.train.learning_rate, settings.train.momentum) == (0.01, 0.9)
    assert with_defaults({"task": "tabular"}).train.learning_rate == 0.3


def test_q_fedavg_takes_adam_where_it_says_how_far_to_go():
    prepared(method="q-fedavg", train__optimizer="adam", **{"q-fedavg.step": "average"})


def test_a_run_with_adam_learns(tmp_path):
    train_options = {"optimizer": "adam", "local_epochs": 2, "learning_rate": 0.003}
    small = {"num_clients": 6, "num_rounds": 3, "data": {"partition": "iid"}}
    found = run(**small, train=train_options, out=tmp_path / "run", progress=False)
    assert found.summary["accuracy-mean"] > 0.8

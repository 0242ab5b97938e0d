import numpy as np
import pytest
from flwr.app import MetricRecord

from fedapps.strategies import FedAvg
from fedapps.strategies.base.exchange import Exchange, Failure
from fedapps.strategies.base.rounds import usable
from tests.helpers import EchoClient, arrays_of, simulate

START = {"w": np.zeros(2, np.float32)}


def test_evaluation_every_k_rounds_and_at_the_end():
    result = simulate(FedAvg(), lambda i, _: EchoClient(1.0), 2, START, 7, evaluate_every=3)
    assert list(result.evaluate_metrics_clientapp) == [3, 6, 7]
    assert result.evaluate_metrics_clientapp[3]["loss"] == 3.0  # of the model after that round
    result = simulate(FedAvg(), lambda i, _: EchoClient(1.0), 2, START, 7, evaluate_every=0)
    assert list(result.evaluate_metrics_clientapp) == [7]


def test_rounds_may_start_late():
    sent = []
    client = EchoClient(1.0, heard=sent.append)
    simulate(FedAvg(), lambda i, _: client, 1, START, 5, first_round=4)
    assert [(one["server-round"], one["num-rounds"]) for one in sent] == [(4, 5), (5, 5)]


def test_a_callback_may_stop_the_run_and_all_callbacks_run():
    seen = []
    stop = [lambda now: now.number == 2, lambda now: seen.append(now.number)]
    result = simulate(FedAvg(), lambda i, _: EchoClient(1.0), 1, START, 5, callbacks=stop)
    assert seen == [1, 2]
    np.testing.assert_allclose(arrays_of(result)["w"], 2.0)


def test_should_stop_is_asked_after_each_round_with_the_result_so_far():
    asked = []

    def should_stop(number, result):
        asked.append((number, sorted(result.evaluate_metrics_clientapp), arrays_of(result)["w"][0]))
        return result.evaluate_metrics_clientapp[number]["loss"] >= 2

    client = lambda i, _: EchoClient(1.0)
    result = simulate(FedAvg(), client, 2, START, 5, should_stop=should_stop)
    assert asked == [(1, [1], 1.0), (2, [1, 2], 2.0)]
    np.testing.assert_allclose(arrays_of(result)["w"], 2.0)
    asked.clear()
    simulate(FedAvg(), client, 2, START, 5, first_round=4, should_stop=lambda *_: False)
    assert asked == []


def test_server_evaluation():
    score = lambda number, arrays: MetricRecord({"w": float(arrays["w"].numpy()[0])})
    options = {"evaluate_every": 2, "evaluate_fn": score}
    result = simulate(FedAvg(), lambda i, _: EchoClient(1.0), 1, START, 4, **options)
    scores = {n: m["w"] for n, m in result.evaluate_metrics_serverapp.items()}
    assert scores == {0: 0.0, 2: 2.0, 4: 4.0}


@pytest.mark.parametrize(
    ("valid", "errors", "broken", "away", "said"),
    [
        (1, 1, 0, 0, True),  # half of those that answered
        (1, 0, 1, 5, True),
        (1, 2, 0, 0, None),
        (1, 1, 1, 0, None),
        (1, 0, 2, 0, False),
        (0, 0, 1, 0, False),
        (0, 1, 0, 0, None),
        (0, 0, 0, 2, None),
    ],
)
def test_a_model_is_sound_if_half_of_those_that_answered_could_use_it(
    valid, errors, broken, away, said
):
    failures = [Failure(9, "", broken=False)] * errors + [Failure(9, "")] * broken
    failures += [Failure(9, "", answered=False, broken=False)] * away
    assert usable(Exchange("train", list(range(valid)), failures=failures)) is said

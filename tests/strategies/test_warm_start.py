import numpy as np
from flwr.serverapp.strategy import FedAdam

from fedapps.clients import WarmStartClient
from fedapps.strategies import FedAvg, FedDyn, FedDynOptions, FedProx, Local, WarmStart
from tests.helpers import EchoClient, Trains, arrays_of, play, refused, simulate

START = {"w": np.float32([1.0, -2.0])}


def flowers_own():
    return FedAdam(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1, eta=0.5)


def test_it_is_one_strategy_and_then_the_other_from_its_model():
    client = lambda i, _: EchoClient(i + 1, i + 1)
    whole = arrays_of(simulate(WarmStart(FedAvg(), 2, flowers_own()), client, 3, START, 5))
    half = arrays_of(simulate(FedAvg(), client, 3, START, 2))
    rest = arrays_of(
        play(flowers_own(), lambda i: EchoClient(i + 1, i + 1), 3, half, 5, first_round=3)
    )
    np.testing.assert_array_equal(whole["w"], rest["w"])


def halves(i, _):
    """Return a client whose shift shows which half it is."""
    return WarmStartClient({"first": lambda: EchoClient(1), "then": lambda: EchoClient(10)})


def test_the_message_says_which_half_of_the_client_answers():
    np.testing.assert_allclose(
        arrays_of(simulate(WarmStart(FedAvg(), 2, FedProx()), halves, 2, START, 5))["w"],
        START["w"] + 2 * 1 + 3 * 10,
    )


def test_a_client_of_two_halves_needs_the_name_of_the_half():
    refused(
        lambda: halves(0, None).fit([START["w"]], {}),
        r"warm-start-half = None .* must be WarmStart",
    )


def test_each_half_has_its_own_rules_for_replies():
    """Local's replies hold no arrays; in FedAvg's rounds such a reply is skipped."""
    silent = lambda: Trains(lambda *_: [])
    client = lambda i: (
        silent() if i == 0 else WarmStartClient({"first": silent, "then": lambda: EchoClient(1)})
    )
    rounds = play(WarmStart(Local(), 2, FedAvg()), client, 2, START, 4).seen
    assert [len(r.trained.failures) for r in rounds] == [0, 0, 1, 1]


def test_state_is_that_of_both_halves():
    strategy = WarmStart(FedDyn(FedDynOptions(1.0)), 1, FedDyn(FedDynOptions(2.0)))
    simulate(strategy, lambda i, _: EchoClient(1), 2, START, 3)
    state = strategy.state_dict()
    assert sorted(state) == ["first.h", "then.h"]
    other = WarmStart(FedDyn(), 1, FedDyn())
    other.load_state_dict(state)
    np.testing.assert_array_equal(other.first.h, strategy.first.h)
    np.testing.assert_array_equal(other.then.h, strategy.then.h)
    assert not np.array_equal(other.first.h, other.then.h)


def test_the_second_half_may_end_the_run():
    second = FedProx()
    second.finished = True
    assert len(play(WarmStart(FedAvg(), 2, second), lambda _: EchoClient(1), 2, START, 9).seen) == 3

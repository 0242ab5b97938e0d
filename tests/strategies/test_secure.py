"""Secure sums through Flower's messages: the plain mean, dropouts in every phase,
weights by losses, and what is taken and refused.
"""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as flower

from fedapps.algorithms.common.privacy import concentrated_epsilon
from fedapps.algorithms.contract.wire import read
from fedapps.algorithms.secure.messages import Offer, Session
from fedapps.algorithms.secure.vector import Layout, Terms, to_vector
from fedapps.algorithms.secure.wire import RECORD, packed
from fedapps.clients import SecureApp
from fedapps.engines.inline import InlineGrid
from fedapps.errors import UserError
from fedapps.runs.prepare import with_defaults
from fedapps.strategies import (
    AFL,
    TERM,
    AAggFFD,
    AAggFFOptions,
    AAggFFS,
    AFLOptions,
    FedAdam,
    FedAvg,
    FedDyn,
    FedProx,
    PrivacyOptions,
    PrivateSum,
    PropFair,
    Scaffold,
    SecureOptions,
    SecureSum,
    SuPerFed,
    TERMOptions,
    TooFewReplies,
    UpdateBound,
)
from fedapps.strategies.base.messages import to_record
from fedapps.strategies.base.secure_grid import mean_replies, vector_of
from fedapps.strategies.base.secure_sessions import Failed, Prepared, Protocol, Sessions
from fedapps.strategies.secure import secured
from tests.helpers import EchoClient, arrays_of, assert_arrays, refused, rounds_of, run_inline
from tests.secure_grids import (
    CLEAR,
    ON,
    SHIFTS,
    START,
    Losing,
    app_of,
    losing,
    mean_of,
    run,
    summed,
)


def assert_alike(plain, found, rounds):
    """Compare the models and metrics of two runs, to rounding."""
    assert_arrays(arrays_of(found), arrays_of(plain), rtol=1e-6, atol=1e-6)
    for name, array in arrays_of(plain).items():
        assert arrays_of(found)[name].dtype == array.dtype
    for number in range(1, rounds + 1):
        one, other = (r.train_metrics_clientapp[number] for r in (plain, found))
        assert_arrays(other, one, rtol=1e-4)


def test_a_sum_does_not_say_whose_half_is_missing(caplog):
    run(FedProx(), rounds=1, options=ON)
    said = "FedProx: at least one of 5 clients do not acknowledge its client half (a secure sum)."
    assert said in caplog.text


@pytest.mark.parametrize(
    "make", [FedAvg, FedAdam, FedDyn, FedProx, lambda: FedAvg(weights="uniform"), flower.FedAvg]
)
def test_the_model_is_that_of_the_plain_run(make):
    # Flower's own makes real numbers of counters
    start = {k: v for k, v in START.items() if k != "count" or make is not flower.FedAvg}
    *_, plain = run(make(), rounds=3, start=start)
    _, inner, found = run(make(), rounds=3, start=start, options=ON)
    assert_alike(plain, found, 3)
    # two phases before the first round, then one that signs and one that reveals
    assert inner.steps == ["hello", "offer", *["train", "sign", "reveal"] * 3]


def test_one_extra_phase_a_round_where_the_server_follows_the_protocol():
    _, inner, result = run(FedAvg(), rounds=2, options=SecureOptions(on=True, consistency=False))
    assert inner.steps == ["hello", "offer", *["train", "reveal"] * 2]
    assert result.grid.grid.travel.messages > 0


def test_few_neighbours_hold_the_shares_of_a_client():
    """Of 30 clients each has 28 neighbours, the fewest that are allowed."""
    asked = []
    found, *_ = run(
        FedAvg(weights="uniform"),
        30,
        options=SecureOptions(on=True, neighbours=28, consistency=False),
        make=lambda i: EchoClient(0.25 * i),
        change=lambda step, facts, _: (
            step == "train" and asked.append((facts["session"]["clients"], len(facts["sealed"])))
        ),
        lost=lambda step, _, place: step == "train" and place == 7,
    )
    assert asked == [(30, 28)] * 29
    np.testing.assert_allclose(found["v"], START["v"] + 0.25 * (sum(range(30)) - 7) / 29, rtol=1e-6)


def test_clients_without_enough_neighbours_leave_until_all_have_enough():
    """Of y too few neighbours made offers; without y, x has too few."""
    graph = {one: sorted(set("abcde") - {one}) for one in "abcde"}
    graph |= {"x": ["a", "b", "w", "y"], "y": ["a", "v", "w", "x"]}
    offers = {name: Offer(name, *[b""] * 4) for name in "abcdexy"}
    assert Sessions(None, Protocol(degree=4, consistency=False)).members(
        Prepared(Session(bytes(16), 1, 0, False, 0, 9), {}, {}, graph, offers)
    ) == list("abcde")


def test_a_client_whose_reply_is_lost_is_back_in_the_next_round(tmp_path):
    """It has noted on disk that it made its shares for that round already."""
    base = InlineGrid(app_of(), 5)
    for node in range(1000, 1005):
        base.contexts[node].node_config["store-dir"] = str(tmp_path)
    heard = lambda step, number, place, _: (step, number, place) != ("train", 1, 0)
    assert [len(now.failures) for now in summed(Losing(base, heard=heard), 2).seen] == [1, 0]


@pytest.mark.parametrize(
    ("on", "rounds", "brought"),
    [
        ({"num_clients": 5}, 3, [True, True, False]),
        ({"clients_per_round": 4, "num_clients": 0}, 2, [False, False]),
    ],
)
def test_shares_for_the_next_round_come_if_it_is_known_whom_it_asks(on, rounds, brought):
    """Not in the last round, nor if some clients are sampled."""
    asked = []
    note = lambda step, facts, _: step == "train" and asked.append("next" in facts)
    summed(Losing(InlineGrid(app_of(), 5), change=note), rounds, **on)
    assert asked == [one for one in brought for _ in range(on.get("clients_per_round", 5))]


@pytest.mark.parametrize(
    ("step", "consistency"),
    [
        *((step, True) for step in ("hello", "offer", "train", "sign", "reveal")),
        *((step, False) for step in ("hello", "offer", "train", "reveal")),
    ],
)
def test_a_client_that_is_lost_in_a_phase(step, consistency):
    found, _, result = run(
        FedAvg(),
        options=SecureOptions(on=True, consistency=consistency),
        lost=lambda now, _, place: now == step and place == 2,
    )
    late = step in ("sign", "reveal")  # it is in the sum already
    places = [0, 1, 2, 3, 4] if late else [0, 1, 3, 4]
    np.testing.assert_allclose(found["v"], mean_of(places, "v"), rtol=1e-6)
    assert result.seen[0].trained.clients == places


def test_too_few_survivors_leave_the_model_as_it_is():
    lost = lambda step, number, place: step == "train" and number == 1 and place < 3
    found, inner, result = run(FedAvg(), 5, rounds=2, options=ON, lost=lost)
    assert 1 not in result.train_metrics_clientapp  # two of five, three needed
    assert inner.steps == ["hello", "offer", "train", "hello", "offer", "train", "sign", "reveal"]
    np.testing.assert_allclose(found["v"], mean_of(range(5), "v"), rtol=1e-6)
    refused(
        lambda: run(FedAvg(), 5, options=ON, lost=lost),
        r"2 of 5 clients are left, 3 needed|no answer",
        TooFewReplies,
    )


@pytest.mark.parametrize(
    ("corrupted", "left", "enough"), [(0, 3, True), (2, 3, False), (2, 4, True)]
)
def test_a_sum_needs_more_clients_than_work_with_the_server(corrupted, left, enough):
    graph = {name: [other for other in "abcde" if other != name] for name in "abcde"}
    sessions = Sessions(None, Protocol(corrupted=corrupted))
    failed = pytest.raises(Failed, match="3 of 5 clients are left, 4 needed")
    with nullcontext() if enough else failed:
        sessions.enough(Prepared(None, {}, {}, graph, {}), "abcde"[:left], "abcde")


def test_survivors_are_most_of_those_with_shares_not_of_the_members():
    """Three of five members are too few where seven clients were to get shares."""
    lost = lambda step, number, place: (
        (step == "offer" and number == 0 and place > 4)
        or (step == "train" and number == 1 and place in (3, 4))
    )
    _, inner, _ = run(FedAvg(), 7, rounds=2, options=ON, lost=lost)
    assert [inner.steps.count(step) for step in ("train", "sign")] == [2, 1]


# --- weights by losses ----------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: AAggFFS(FedAdam()),
        lambda: AAggFFS(FedAvg(), AAggFFOptions(prior="samples")),
        lambda: AAggFFD(FedAvg()),
        lambda: AFL(FedProx(), AFLOptions(gamma=0.02)),
        lambda: TERM(FedAdam(), TERMOptions(lambda_=0.1, prior="samples")),
        lambda: PropFair(AAggFFS(FedAvg())),
    ],
)
@pytest.mark.parametrize("gone", [False, True])
def test_weights_by_losses_are_those_of_the_plain_run(make, gone):
    """Also where a client is lost in training, another one in each round."""
    lost = lambda step, number, place: gone and step == "train" and place == number % 7
    one, other = make(), make()
    *_, plain = run(one, 7, rounds=5, make=losing, lost=lost)
    _, inner, found = run(other, 7, rounds=5, make=losing, lost=lost, options=CLEAR)
    assert_alike(plain, found, 5)
    one, other = (s.strategy if isinstance(s, PropFair) else s for s in (one, other))
    assert len(one.last_weights) == 7 - gone
    assert other.last_weights == pytest.approx(one.last_weights, rel=1e-5)
    assert max(other.last_weights.values()) > 1.1 * min(other.last_weights.values())
    assert inner.steps.count("mask") == 5


def test_a_client_that_is_lost_after_its_loss_has_no_weight():
    """The weights are those of all losses, renormalised over the clients that stay."""
    lost = lambda step, number, place: step == "mask" and place == 2
    plain, left = (TERM(FedAvg(), TERMOptions(lambda_=0.3)) for _ in range(2))
    run(plain, make=losing)
    found, *_ = run(left, make=losing, lost=lost, options=CLEAR)
    weights = {i: w for i, w in plain.last_weights.items() if i != 2}
    want = sum(w * SHIFTS[i] for i, w in weights.items()) / sum(weights.values())
    np.testing.assert_allclose(found["v"], START["v"] + want, rtol=1e-6)
    assert left.last_weights.keys() == weights.keys()
    assert sum(left.last_weights.values()) == pytest.approx(1)


def test_a_loss_that_is_refused_leaves_its_client_out(caplog):
    make = lambda i: EchoClient(SHIFTS[i], 10, {"loss-before": -1.0 if i == 1 else 0.5 + i})
    plain, *_ = run(AAggFFS(FedAvg()), make=make)
    with caplog.at_level("INFO", "flwr"):
        found, inner, _ = run(AAggFFS(FedAvg()), make=make, options=CLEAR)
    np.testing.assert_allclose(found["v"], plain["v"], rtol=1e-6)
    assert "each client's loss-before is in the clear" in caplog.text
    assert "its loss cannot be used" in caplog.text
    for reply in (reply for step, reply in inner.seen if step == "train"):
        assert set(reply.content) == {"clear", RECORD}
        assert set(reply.content["clear"]) == {"loss-before"}


@pytest.mark.parametrize("samples", [0, 65_536])
def test_samples_outside_of_the_bounds_give_no_weight(samples):
    def boast(step, _, place, reply):
        if place == 2 and "clear" in reply.content:
            reply.content["clear"]["num-examples"] = samples
        return True

    (now,) = summed(
        Losing(InlineGrid(app_of(losing), 5), heard=boast),
        strategy=AAggFFS(FedAvg(), AAggFFOptions(prior="samples")),
        options=CLEAR,
    ).seen
    (failure,) = now.trained.failures
    assert (failure.client, now.trained.clients) == (2, [0, 1, 3, 4])
    assert f"num-examples = {samples}" in failure.reason


def test_a_weight_above_a_half_counts_as_a_half():
    make = lambda i: EchoClient(SHIFTS[i], 10, {"loss-before": 30.0 if i == 3 else 0.5})
    options = TERMOptions(lambda_=1.0)
    found, *_ = run(strategy := TERM(FedAvg(), options), make=make, options=CLEAR)
    assert strategy.last_weights[3] == pytest.approx(0.5)
    want = 0.5 * SHIFTS[3] + 0.125 * sum(SHIFTS[i] for i in (0, 1, 2, 4))
    np.testing.assert_allclose(found["v"], START["v"] + want, rtol=1e-6)
    # without client 4 it would be more: nobody is asked for signatures
    lost = lambda step, number, place: (step, number, place) == ("mask", 1, 4)
    _, inner, _ = run(TERM(FedAvg(), options), rounds=2, make=make, options=CLEAR, lost=lost)
    assert [inner.steps.count(step) for step in ("train", "mask", "sign")] == [2, 2, 1]


def test_a_site_that_knows_its_peers_shows_losses_only_if_it_says_so(tmp_path):
    base = InlineGrid(app_of(losing), 4)
    (tmp_path / "peers").write_text("")
    node = base.contexts[1000].node_config
    node["secure-peers"], node["store-dir"] = str(tmp_path / "peers"), str(tmp_path)
    terms = Terms("model", "num-examples", True, 4, 16.0, 10, 0.0, False, clear=["loss-before"])
    facts = {"session": Session(b"1", 1, 0, True, 0).to_fields(), "terms": terms.to_fields()}
    for allowed in (False, True):
        node["secure-clear-losses"] = allowed
        content = RecordDict({"arrays": to_record(["w"], [START["w"]]), "config": ConfigRecord()})
        content[RECORD] = ConfigRecord(packed(facts))
        (reply,) = base.send_and_receive([Message(content, 1000, "train")])
        assert reply.has_error() != allowed
        assert allowed or "this site shows no losses" in reply.error.reason


# --- what fits and what is refused ----------------------------------------------------


@pytest.mark.parametrize("make", [FedAvg, FedAdam, Scaffold, FedDyn, SuPerFed, flower.FedYogi])
def test_what_needs_sums_only_is_taken(make):
    assert SecureSum(make()).strategy


@pytest.mark.parametrize(
    ("odd", "bound", "why"),
    [
        (EchoClient(17.0), None, "changes by more than bound = 16"),
        (EchoClient(np.nan), None, "or is not finite"),
        (EchoClient(0.1, 70_000), None, "max-weight = 65535"),
        (EchoClient(0.1, 10, {"x": np.inf}), None, "metric 'x'"),
        (EchoClient(0.1, 10, {"y": 1.0}), None, "other arrays"),
        (EchoClient(5.0), UpdateBound(max_update_norm=1.0), "the norm of the update is above 1"),
    ],
)
def test_a_client_outside_of_its_bounds_is_left_out(odd, bound, why):
    make = lambda i: odd if i == 1 else EchoClient(0.1, 10, {"x": 1.0})
    found, _, result = run(
        FedAvg(), 5, make=make, options=ON, bound=bound, start={"w": START["w"], "v": START["v"]}
    )
    np.testing.assert_allclose(found["w"], 0.1, rtol=1e-5)
    assert why in result.grid.grid.faults[1001]


def test_updates_are_clipped_by_the_clients():
    bound = UpdateBound(max_update_norm=1.0, on_large_update="clip")
    plain, *_ = run(FedAvg(), 5, bound=bound)
    found, *_ = run(FedAvg(), 5, options=ON, bound=bound)
    np.testing.assert_allclose(found["v"], plain["v"], rtol=1e-6)


CONTENT = RecordDict({"arrays": to_record(["v"], [START["v"]]), "config": ConfigRecord()})


def test_sums_are_the_reply_of_one_client():
    terms = Terms("sums", "num-examples", False, 4, 16.0, 10, 0.0, False)
    words, layout = to_vector(terms, {}, {"n": np.array([3, -4])}, {"num-examples": 2})
    replies = mean_replies(terms, layout, CONTENT, 3 * words, ["0", "1", "2"], set())
    sums = [read(reply["arrays"]["n"]) for reply in replies.values()]
    assert np.sum(sums, axis=0).tolist() == [9, -12]


def test_two_nodes_of_one_client_are_one_client(tmp_path):
    """With one folder they have one key, too."""
    base = InlineGrid(app_of(), 5)
    for node in (1000, 1004):
        base.contexts[node].node_config |= {"store-dir": str(tmp_path), "partition-id": 0}
    replies = secured(base, FedAvg(), ON).send_and_receive(
        [Message(CONTENT, 1000 + k, "train") for k in range(5)]
    )
    assert [reply.has_error() for reply in replies] == [False] * 4 + [True]
    assert "another client is called 0, too" in replies[4].error.reason


@pytest.mark.parametrize(
    ("nodes", "shifts", "why"),
    [
        ([1000, 1001, 1002, 1000], [0, 0, 0, 0], "one message per client, but one gets two"),
        ([1000, 1001, 1002, 1003], [0, 0, 0, 1], "the same model and settings for all clients"),
    ],
)
def test_messages_that_cannot_be_summed(nodes, shifts, why):
    messages = [
        Message(RecordDict({**CONTENT, "arrays": to_record(["v"], [START["v"] + s])}), n, "train")
        for n, s in zip(nodes, shifts, strict=True)
    ]
    grid = secured(InlineGrid(app_of(), 5), FedAvg(), ON)
    refused(lambda: grid.send_and_receive(messages), why)


def test_flowers_own_loop_and_app():
    """A stranger's project: Flower's strategy, loop and message API."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        place = int(context.node_config["partition-id"])
        arrays = message.content["arrays"].to_numpy_ndarrays()
        record = to_record(list(message.content["arrays"]), [a + SHIFTS[place] for a in arrays])
        metrics = MetricRecord({"num-examples": 1 + 5 * place, "loss": 0.5})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    strategy = SecureSum(flower.FedAvg(fraction_evaluate=0.0))
    result = strategy.start(
        InlineGrid(SecureApp(app), 5), to_record(["v"], [START["v"]]), num_rounds=1
    )
    np.testing.assert_allclose(arrays_of(result)["v"], mean_of(range(5), "v"), rtol=1e-6)
    refused(lambda: strategy.configure_train(1, ArrayRecord(), None, None), "call its start")


# --- secure sums with noise -----------------------------------------------------------

# Clipped updates, noise that the clients add, and a budget.

NUMBERS = 20_000
LONG = {"w": np.zeros(NUMBERS, np.float32), "running_var": np.zeros(3), "count": np.array(7)}


def private(strategy=None, noise=1.0, clip=2.0, **options):
    options = PrivacyOptions(noise_multiplier=noise, clipping_norm=clip, **options)
    return PrivateSum(strategy or FedAvg(), options)


def by(shift):
    return lambda i: EchoClient(shift(i), num_examples=1 + 5 * i, metrics={"secret": 0.5 * i})


def test_updates_are_clipped_and_have_equal_weights():
    """With next to no noise: each client moves 20,003 numbers by its shift, and the
    norm of that is shortened to C.
    """
    shifts = [0.001, 3.0, 2.0, 1.0, -0.002]
    found, _, result = run(
        private(noise=1e-6), start=LONG, make=by(lambda i: shifts[i]), options=ON
    )
    size = np.sqrt(NUMBERS + 3)
    np.testing.assert_allclose(
        found["w"], np.mean([np.clip(s, -2 / size, 2 / size) for s in shifts]), atol=1e-5
    )
    assert (found["count"], set(result.train_metrics_clientapp[1])) == (7, {"epsilon"})


@pytest.mark.parametrize(("lost", "survivors"), [(0, 5), (1, 4)])
@pytest.mark.parametrize("corrupted", [0, 1])
def test_the_noise_of_the_fewest_honest_clients_is_that_of_the_sum(lost, survivors, corrupted):
    """Five clients: a sum has at least 3 of them (4 with one corrupted, of whom 3 are
    honest), whose noise together has the deviation z C.
    """
    z, c = 0.7, 2.0
    options = SecureOptions(on=True, corrupted=corrupted)
    found, *_ = run(
        private(noise=z, clip=c),
        start=LONG,
        make=by(lambda _: 0.0),
        options=options,
        lost=lambda step, _, client: step == "train" and client < lost,
    )
    noise = found["w"].astype(float) * survivors
    wanted = z * c * np.sqrt(survivors / 3)
    assert abs(noise.std() / wanted - 1) < 5 / np.sqrt(2 * NUMBERS)
    assert abs(noise.mean()) < 5 * wanted / np.sqrt(NUMBERS)
    assert (found["running_var"] >= 0).all()


def test_runs_with_one_seed_have_other_noise():
    one, other = (run(private(), start=LONG, options=ON)[0]["w"] for _ in range(2))
    assert (one != other).mean() > 0.99


def test_rounding_keeps_the_norm_within_the_bound(monkeypatch):
    """Whole numbers, not the real ones before, are what the sum reveals."""
    monkeypatch.setattr(
        "fedapps.algorithms.secure.vector.discrete_gaussian", lambda n, _: np.zeros(n, int)
    )
    terms = Terms("model", "num-examples", False, 1000, 1.0, 60_000, 0.5, True, 40.0)
    sent, arrays = {"w": np.zeros(50_000)}, {"w": np.full(50_000, 0.3)}
    words, _ = to_vector(terms, sent, arrays, {"num-examples": 3})
    changes = words[:-2].view(np.int64).astype(float)
    most = 0.5 * 2.0 ** terms.exponents()["real"][0]
    assert 0.999 * most < np.sqrt(np.sum(np.square(changes))) <= most
    refused(
        lambda: to_vector(replace(terms, max_norm=1e-9, noise=1e12), sent, arrays, {}),
        "too short for 50000 numbers",
    )


#: The accountant takes whole numbers for so fine that they are like real ones.
FINE = Terms("model", "num-examples", False, 5, 1.0, 10, 1.0, True, 1e-6)


def test_noise_has_many_units():
    assert FINE.noise_scale(3) >= 2**10


def test_the_budget_ends_the_run_and_a_failed_round_counts():
    strategy = private(noise=2.0, max_epsilon=concentrated_epsilon(3.5 / 8, 1e-5))
    *_, result = run(strategy, rounds=9, start=LONG, options=ON)
    assert (strategy.releases, strategy.finished) == (3, True)
    assert list(result.train_metrics_clientapp) == [1, 2, 3]
    lost = lambda step, number, place: step == "train" and number == 2 and place > 1
    run(failing := private(noise=2.0), rounds=3, start=LONG, options=ON, lost=lost)
    assert failing.releases == 3


@pytest.mark.parametrize(("noise", "fits"), [(1.0, True), (0.9, False), (0, False), (None, False)])
def test_a_site_can_demand_noise(noise, fits):
    """Client 0 does, so it is in no sum with less noise, and in none in the clear."""
    base = InlineGrid(SecureApp(app_of(lambda i: EchoClient(0.5)).app, lambda context: False), 5)
    base.contexts[1000].node_config["secure-noise"] = "1.0"
    strategy = private(noise=noise) if noise else FedAvg()
    (now,) = summed(base, strategy=strategy, options=None if noise is None else ON, start=LONG).seen
    reasons = [failure.reason for failure in now.failures]
    assert fits == (not reasons)
    assert fits or ("secure-noise = 1" in reasons[0]) == (noise is not None)


@pytest.mark.parametrize(
    "lie", [{"replies": "sums"}, {"replies": "update"}, {"clip": False}, {"clear": ["loss-before"]}]
)
def test_updates_are_shortened_whatever_kind_of_replies_the_server_names(lie):
    """Noise in units of a norm hides nothing if the update may be longer."""
    inner = Losing(
        InlineGrid(app_of(by(lambda i: 3.0)), 5),
        change=lambda step, facts, _: step == "train" and facts["terms"].update(lie),
    )
    refused(lambda: summed(inner, strategy=private(), start=LONG), "", TooFewReplies)
    texts = [reply.error.reason for _, reply in inner.seen if reply.has_error()]
    said = "noise needs models as replies, shortened updates"
    assert [said in text for text in texts] == [True] * 5


def test_a_release_that_cannot_be_counted_does_not_happen():
    def full(_):
        raise OSError("no space left on device")

    strategy = private()
    strategy.count_releases(0, full)
    found, inner, _ = run(strategy, start=LONG, options=ON)
    assert (found["w"] == 0).all()
    assert ("train" in inner.steps, strategy.releases) == (False, 0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: run(
                FedAvg(), 7, options=SecureOptions(on=True, neighbours=4, consistency=False)
            ),
            "neighbours = 4: with 7 clients, .* choose",
        ),
        (
            lambda: vector_of(
                Terms("model", "num-examples", True, 4, 16.0, 10, 0.0, False),
                CONTENT,
                RecordDict({"masked": to_record(["masked"], [np.zeros(6 * 5, np.uint8)])}),
                Layout([("v", (2, 2), "float64")]).to_text(),
            ),
            "its vector has 30 bytes",
        ),
        (lambda: run(private(), start=LONG), "without secure sums nobody adds noise"),
        (
            lambda: run(private(), start=LONG, options=ON, bound=UpdateBound(max_update_norm=1.0)),
            "clipping-norm = 2 bounds",
        ),
        (
            lambda: replace(FINE, noise=1e-11).noise_scale(3),
            "noise-multiplier = 1e-11: too little for sums",
        ),
    ],
)
def test_sums_and_noise_that_cannot_be_are_refused(call, message):
    refused(call, message)


JOB = {
    "num-clients": 5,
    "clients-per-round": 0,
    "num-rounds": 2,
    "train.local-epochs": 1,
    "data.max-samples": 150,
    "secure.on": True,
    "dp.noise-multiplier": 0.5,
}


@pytest.mark.parametrize("method", ["fedavg", "superfed-mm"])
def test_a_run_reports_its_budget(method, tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra 'app'")
    run_inline(tmp_path / "r", method=method, **JOB)
    assert [row["train"]["epsilon"] for row in rounds_of(tmp_path / "r")] == pytest.approx(
        [concentrated_epsilon(n / (2 * 0.25), 1e-5) for n in (1, 2)]
    )
    refused(
        lambda: with_defaults({**JOB, "method": method, "max-update-norm": 1.0}),
        r"dp\.clipping-norm",
        UserError,
    )

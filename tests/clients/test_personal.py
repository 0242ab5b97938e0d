"""Personal methods, SCAFFOLD and FedDyn: closed-form fixed points on quadratics, exact
reductions, what stays with the client.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, RecordDict

from fedapps.algorithms.contract.sent import DITTO_MUS
from fedapps.clients import (
    APFLClient,
    DittoClient,
    FedAvgClient,
    FedDynClient,
    FedRepClient,
    LocalClient,
    MessageStore,
    PartialClient,
    PFedMeClient,
    ScaffoldClient,
    SuPerFedClient,
)
from fedapps.strategies import (
    APFL,
    APFLOptions,
    Ditto,
    DittoOptions,
    FedAvg,
    FedDyn,
    FedDynOptions,
    FedRep,
    Local,
    PartialSharing,
    PFedMe,
    PFedMeOptions,
    Scaffold,
    ScaffoldOptions,
    SuPerFed,
    SuPerFedOptions,
)
from tests.clients import federation
from tests.clients.federation import TRAIN, federate, headed, initial, shifted
from tests.helpers import (
    EchoClient,
    Trains,
    arrays_in,
    arrays_of,
    assert_arrays,
    blobs,
    exchanged,
    play,
    refused,
    small_net,
)
from tests.quadratics import CONFIG, CURVATURE, TARGET, quadratic

OPTIMUM = 10 / 11


def run_quadratics(strategy, kind, rounds, epochs, a_round=None, **config):
    """Return the final w, and the clients' stores."""
    make, start = partial(quadratic, kind), {"w": np.float32([5.0])}
    settings = {**CONFIG, "local-epochs": epochs, **config}
    arrays, stores, _ = federate(
        strategy, make, 2, start, rounds, settings, a_round, evaluate_every=0
    )
    return arrays["w"][0], stores


# --- SCAFFOLD -------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_scaffold_reaches_the_optimum_where_fedavg_is_biased(momentum):
    config = {"momentum": momentum, "learning-rate": 0.05}
    biased, _ = run_quadratics(FedAvg(), FedAvgClient, 30, 10, **config)
    assert abs(biased - OPTIMUM) > 0.05
    server_model, stores = run_quadratics(Scaffold(), ScaffoldClient, 40, 10, **config)
    assert server_model == pytest.approx(OPTIMUM, abs=1e-4)
    for i in range(2):  # at the optimum the variates are the gradients there
        assert stores[i].load("control", {}, before=False)[0] == pytest.approx(
            CURVATURE[i] * (OPTIMUM - TARGET[i]), abs=1e-2
        )


def test_scaffold_reaches_the_optimum_with_one_client_a_round():
    strategy = Scaffold()
    server_model, _ = run_quadratics(
        strategy, ScaffoldClient, 150, 5, a_round=1, **{"learning-rate": 0.08}
    )
    assert server_model == pytest.approx(OPTIMUM, abs=1e-4)
    assert strategy.c["w"] == pytest.approx(0.0, abs=1e-3)  # the mean gradient at the optimum


@pytest.mark.parametrize("rounds", [1, 2, 7])
def test_c_is_the_mean_of_all_clients_variates_though_one_takes_part(rounds):
    """Whatever the server's step."""
    strategy = Scaffold(ScaffoldOptions(0.5))
    _, stores = run_quadratics(strategy, ScaffoldClient, rounds, 5, a_round=1)
    own = [store.load("control", {}, before=False) or [np.zeros(1)] for store in stores.values()]
    assert strategy.c["w"] == pytest.approx(sum(c[0] for c in own) / 2, rel=1e-5)
    assert abs(strategy.c["w"]) > 0.1


def test_the_first_step_of_scaffold_is_fedavgs_and_the_server_rate_scales_it():
    one, _ = run_quadratics(FedAvg(), FedAvgClient, 1, 3)
    same, _ = run_quadratics(Scaffold(), ScaffoldClient, 1, 3)
    half, _ = run_quadratics(Scaffold(ScaffoldOptions(0.5)), ScaffoldClient, 1, 3)
    assert (same, half) == (one, pytest.approx((5 + one) / 2))


@pytest.mark.parametrize(("rate", "heard"), [(0.19, 0), (0.21, 1)])
def test_scaffold_says_once_that_its_control_variates_grow(rate, heard, caplog):
    """The local steps of the second client diverge above 0.2."""
    run_quadratics(Scaffold(), ScaffoldClient, 30, 4, **{"learning-rate": rate})
    assert caplog.text.count("SCAFFOLD's control variates are") == heard


def test_one_client_whose_control_variate_grows_is_enough(caplog):
    """With Lightning at rate 0.05 one of ten grew by 30 before the model was lost; the
    median grew by 3.
    """
    strategy = Scaffold()
    strategy.c = {"w": np.zeros(1)}
    for number, sizes in enumerate([(1, 2), (1, 19), (1, 21), (1, 40)], 1):
        strategy._watch(
            number, [ArrayRecord({"control.w": Array(np.array([float(s)]))}) for s in sizes]
        )
    (line,) = caplog.messages
    assert line.startswith("round 3: SCAFFOLD's control variates are up to 10 times")


# --- fixed points of personal models --------------------------------------------------


def test_local_clients_reach_their_own_optima_and_send_nothing(monkeypatch):
    """A training message brings no array to a client, and its reply none to the
    server.
    """
    seen = exchanged(monkeypatch)
    server_model, stores = run_quadratics(Local(), LocalClient, 60, 20)
    for i in range(2):
        assert stores[i].load("model", {}, before=False)[0][0] == pytest.approx(TARGET[i], abs=1e-4)
    assert server_model == 5.0  # stays what it was
    assert [arrays_in(*both) for kind, *both in seen if kind == "train"] == [[]] * 2 * 60


@pytest.mark.parametrize("mu", [0.5, 5.0])
def test_dittos_personal_models_reach_their_fixed_point(mu):
    """w goes to the optimum (one step a round); v minimises h/2 (v - t)^2 + mu/2 (v -
    w)^2.
    """
    server_model, stores = run_quadratics(
        Ditto(DittoOptions(mu, 10)), DittoClient, 60, 1, **{"learning-rate": 0.05}
    )
    assert server_model == pytest.approx(OPTIMUM, abs=1e-4)
    for i, (h, t) in enumerate(zip(CURVATURE, TARGET, strict=True)):
        assert stores[i].load("ditto", {}, before=False)[0][0] == pytest.approx(
            (h * t + mu * OPTIMUM) / (h + mu), abs=1e-4
        )


@pytest.mark.parametrize(("lambda_", "beta", "rounds"), [(2.0, 1.0, 40), (15.0, 0.5, 100)])
def test_pfedme_reaches_the_optimum_of_the_envelopes(lambda_, beta, rounds):
    """The envelope of h/2 (w - t)^2 has the curvature h lambda / (h + lambda); theta =
    (h t + lambda w) / (h + lambda).
    """
    strategy = PFedMe(PFedMeOptions(lambda_, 60, 0.9 / lambda_, beta))
    server_model, stores = run_quadratics(
        strategy, PFedMeClient, rounds, 30, **{"learning-rate": 1 / (10 + lambda_)}
    )
    weights = [h * lambda_ / (h + lambda_) for h in CURVATURE]
    want = sum(c * t for c, t in zip(weights, TARGET, strict=True)) / sum(weights)
    assert server_model == pytest.approx(want, abs=1e-4)
    for i, (h, t) in enumerate(zip(CURVATURE, TARGET, strict=True)):
        assert stores[i].load("pfedme", {}, before=False)[0][0] == pytest.approx(
            (h * t + lambda_ * want) / (h + lambda_), abs=1e-4
        )


@pytest.mark.parametrize("steps", [1, 4])
def test_apfls_alpha_follows_its_gradient_once_a_round(steps):
    """The first step from w = 5 and v = 3 at alpha = 0.5 on h/2 (x - t)^2: the slope is
    (v - w) h (mixture - t).
    """
    store = MessageStore(RecordDict())
    store.save("apfl", [np.float32([3.0]), np.array([0.5])], {})
    quadratic(APFLClient, 1, store).fit(
        [np.float32([5.0])],
        {
            **CONFIG,
            "local-epochs": steps,
            "apfl-alpha": 0.1,
            "apfl-adaptive": True,
            "learning-rate": 0.001,
        },
    )
    v, alpha = store.load("apfl", {}, before=False)
    gradient = 10 * (4.0 - 1.0)
    assert alpha[0] == pytest.approx(0.5 - 0.001 * (3 - 5) * gradient)
    assert (v[0] == pytest.approx(3 - 0.001 * 0.5 * gradient)) == (steps == 1)


# --- reductions, on a net -------------------------------------------------------------


train_nets = partial(federation.train_nets, config=TRAIN)


def with_validation(i):
    """The first client has none, the third some with other labels, which a strong pull
    suits.
    """
    own = shifted(i)
    other = blobs(i + 20, n=200 - 80 * i).train if i else own.train
    return replace(own, validation=replace(other, y=(other.y + 1) % 3) if i == 2 else other)


def test_the_global_models_of_ditto_and_apfl_are_fedavgs():
    want, _, _ = train_nets(FedAvg(), FedAvgClient)
    for strategy, kind in (
        (Ditto(), DittoClient),
        (APFL(), APFLClient),
        (APFL(APFLOptions(0.0)), APFLClient),
    ):
        assert_arrays(train_nets(strategy, kind)[0], want)


def test_without_a_pull_ditto_is_local_training_and_with_alpha_one_so_is_apfl(monkeypatch):
    """Local starts from the run's initialisation, which all these clients receive in
    the first round.
    """
    start = list(initial().values())
    monkeypatch.setattr(LocalClient, "fresh_arrays", lambda self, *_, **__: start)
    monkeypatch.setattr("fedapps.clients.steps.trained_net.by_cohort", lambda *_: False)
    _, local, _ = train_nets(Local(), LocalClient)
    _, ditto, _ = train_nets(Ditto(DittoOptions(0.0, 0)), DittoClient)
    _, apfl, _ = train_nets(APFL(APFLOptions(1.0)), APFLClient)
    for i in range(3):
        want = local[i].load("model", {}, before=False)
        assert_arrays(ditto[i].load("ditto", {}, before=False), want)
        assert_arrays(apfl[i].load("apfl", {}, before=False)[:-1], want)


def test_a_client_that_never_trained_is_scored_with_the_model_it_is_sent():
    data, sent = blobs(1), list(initial(seed=4).values())
    want = FedAvgClient(small_net, data).evaluate(sent, TRAIN)[2]
    config = {**TRAIN, "apfl-alpha": 0.25, "ditto-mu": 1.0, "ditto-epochs": 1}
    for kind in (DittoClient, PFedMeClient, APFLClient):
        metrics = kind(small_net, data).evaluate(sent, config)[2]
        assert metrics["accuracy"] == metrics["global-accuracy"] == want["accuracy"]
        assert metrics["loss"] == pytest.approx(want["loss"], rel=1e-6)


def test_ditto_trains_a_model_with_every_mu_and_is_scored_with_the_chosen_one():
    """Each is that of a run with this mu alone; losses computed by hand choose."""
    of_mu = [train_nets(Ditto(DittoOptions(mu, 3)), DittoClient)[1] for mu in DITTO_MUS]
    strategy, scored, losses = Ditto(DittoOptions(epochs=3)), [], []

    class Noting(DittoClient):
        def evaluate(self, parameters, config):
            reply = super().evaluate(parameters, config)
            scored.append((self.client_id, config["ditto-mu"], reply[0]))
            return reply

    _, stores, _ = train_nets(strategy, Noting, data=with_validation)
    for i in range(3):
        data = with_validation(i)
        tested = FedAvgClient(small_net, replace(data, test=data.validation))
        losses.append([])
        for mu, alone in zip(DITTO_MUS, of_mu, strict=True):
            v = stores[i].load(f"ditto-{mu:g}", {}, before=False)
            assert_arrays(v, alone[i].load("ditto", {}, before=False))
            losses[i].append(tested.evaluate(v, TRAIN)[0])
    curves = np.array(losses[1:]) - np.mean(losses[1:], axis=1, keepdims=True)
    samples = np.array([len(with_validation(i).validation) for i in (1, 2)])
    pooled = samples @ curves / samples.sum()
    wanted = [DITTO_MUS[int(pooled.argmin())]] + [
        DITTO_MUS[int(((n * own + 12 * pooled) / (n + 12)).argmin())]
        for own, n in zip(curves, samples, strict=True)
    ]
    assert len(set(wanted)) > 1
    for i, mu in enumerate(wanted):
        v = stores[i].load(f"ditto-{mu:g}", {}, before=False)
        test = FedAvgClient(small_net, with_validation(i)).evaluate(v, TRAIN)[0]
        last = [one for one in scored if one[0] == i and one[1] >= 0][-1]
        assert last == (i, mu, pytest.approx(test, rel=1e-6))


def test_without_validation_samples_dittos_clients_are_scored_with_one():
    strategy = Ditto()
    train_nets(strategy, DittoClient, data=lambda i: with_validation(0))
    assert (strategy.choices.of_all, strategy.answer(None)) == (None, {"ditto-mu": 1.0})


KEPT = {
    "ditto": (Ditto, DittoClient),
    "apfl": (lambda: APFL(APFLOptions(0.4, True)), APFLClient),
    "pfedme": (lambda: PFedMe(PFedMeOptions(beta=0.5)), PFedMeClient),
    "superfed-mm": (lambda: SuPerFed(SuPerFedOptions(start=0.0)), SuPerFedClient),
    "local": (Local, LocalClient),
    "fedrep": (lambda: FedRep(["3."]), FedRepClient),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_a_client_keeps_is_in_no_message(name, monkeypatch):
    """Every array of every message, in both directions, is compared with everything
    that any client kept.
    """
    kept, save, seen = set(), MessageStore.save, exchanged(monkeypatch)

    def note(self, store_name, arrays, config):
        kept.update(np.asarray(array).tobytes() for array in arrays)
        save(self, store_name, arrays, config)

    monkeypatch.setattr(MessageStore, "save", note)
    make, kind = KEPT[name]
    train_nets(make(), kind)
    assert len(kept) >= 3 * 3 * 2
    assert not kept.intersection(
        [array.tobytes() for _, *both in seen for _, array in arrays_in(*both)]
    )
    replies = [reply for kind_of, _, reply in seen if kind_of == "train"]
    said = [v for one in replies for record in one.metric_records.values() for v in record.values()]
    assert all(isinstance(value, int | float) for value in said)


# --- one part shared ------------------------------------------------------------------


def test_fedrep_trains_the_head_first_and_then_the_body(monkeypatch):
    monkeypatch.setattr("fedapps.clients.steps.trained_net.by_cohort", lambda *_: False)
    phases = []

    class Watched(FedRepClient):
        def train(self, config):
            before = {n: t.clone() for n, t in self.model.state_dict().items()}
            loss = super().train(config)
            phases.append(
                {n for n, t in self.model.state_dict().items() if not torch.equal(t, before[n])}
            )
            return loss

    train_nets(FedRep(["3."]), Watched, rounds=1)
    assert phases == [{"3.weight", "3.bias"}, {"1.weight", "1.bias"}] * 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: train_nets(PartialSharing(["nowhere."], "head"), PartialClient),
            r"0 of the model.s 4 arrays .* choose a model with a body and a head, or a head among "
            "the layers 1, 3$",
        ),
        (lambda: PartialClient(small_net, blobs()).head(), "has no head"),
        (lambda: DittoOptions(-0.5), r"mu = -0\.5: must be at least 0, or -1"),
    ],
)
def test_parts_that_a_model_has_not_and_a_negative_pull_are_refused(call, message):
    refused(call, message)


def test_what_another_architecture_left_is_refused_and_not_overwritten():
    wide = list(initial(partial(small_net, hidden=9)).values())
    sent = list(initial().values())
    config = {
        **TRAIN,
        "ditto-mu": 1.0,
        "ditto-epochs": 1,
        "apfl-alpha": 0.3,
        "apfl-adaptive": False,
        "share": "body",
        "feddyn-alpha": 0.1,
        "pfedme-lambda": 15.0,
        "pfedme-inner-steps": 5,
        "pfedme-rate": 0.0,
        "superfed-mixing": "model",
    }
    for kind, name, left in (
        (SuPerFedClient, "personal", wide),
        (DittoClient, "ditto", wide),
        (APFLClient, "apfl", wide),
        (PFedMeClient, "pfedme", wide),
        (FedDynClient, "feddyn", wide),
        (ScaffoldClient, "control", wide),
        (PartialClient, "private", wide),
        (PartialClient, "private", wide[2:]),
    ):
        client = kind(headed(), blobs())
        client.store.save(name, left, {})
        arrays = {"control": sent + sent, "private": sent[:2]}.get(name, sent)
        refused(lambda: client.fit(arrays, config), r"^client 0.* architecture")
        assert_arrays(client.store.load(name, {}, before=False), left)


# --- FedDyn ---------------------------------------------------------------------------

# On heterogeneous quadratics, whose joint optimum is known, with few clients per round;
# and its client's steps.

ALPHA = 0.7
M, D = 5, 3
RNG = np.random.default_rng(4)
CURVATURES = RNG.uniform(0.5, 4, (M, D))  # f_i(x) = sum_d a_id / 2 (x_d - t_id)^2
TARGETS = RNG.normal(size=(M, D)) * 3
JOINT = (CURVATURES * TARGETS).sum(0) / CURVATURES.sum(0)


def solving(i, memory):
    """Return a client that solves its local problem in closed form and keeps g."""

    def solve(sent, config):
        start, alpha = sent[0], config["feddyn-alpha"]
        a, g = CURVATURES[i], memory.get(i, np.zeros(D))
        # gradient: a (theta - t) - g + alpha (theta - start) = 0
        theta = (a * TARGETS[i] + g + alpha * start) / (a + alpha)
        memory[i] = g - alpha * (theta - start)
        return [theta]

    return Trains(solve, i + 1)


def final(rounds, sampled):
    """Return the last model, the strategy and what the clients keep."""
    memory, strategy, on = (
        {},
        FedDyn(FedDynOptions(ALPHA)),
        {"seed": 3, "clients_per_round": sampled},
    )
    start, client = {"x": np.zeros(D)}, lambda i: solving(i, memory)
    result = play(strategy, client, M, start, rounds, on=on, evaluate_every=0)
    return arrays_of(result)["x"], strategy, memory


@pytest.mark.parametrize(("sampled", "rounds"), [(1, 600), (2, 400), (5, 400)])
def test_the_fixed_point_is_the_joint_optimum_for_any_participation(sampled, rounds):
    result, _, _ = final(rounds, sampled)
    np.testing.assert_allclose(result, JOINT, atol=1e-6)


def test_h_is_the_mean_of_g_over_all_clients_including_absent_ones():
    _, strategy, memory = final(7, 2)
    np.testing.assert_allclose(strategy.h, sum(memory.values()) / M, atol=1e-12)


def test_statistics_and_counters_are_averaged_and_not_corrected():
    start = {
        "w": np.float32([1.0]),
        "n.running_mean": np.float32([2.0]),
        "n.num_batches_tracked": np.int64(7),
    }
    end = arrays_of(play(FedDyn(FedDynOptions(ALPHA)), lambda i: EchoClient(2 * i), 2, start))
    assert end["n.running_mean"] == pytest.approx(3.0)
    assert (end["n.num_batches_tracked"], end["n.num_batches_tracked"].dtype) == (8, np.int64)
    assert end["w"] == pytest.approx(1 + 1 + 1)  # mean update 1, and -h / alpha = 1


# --- the client -----------------------------------------------------------------------


def test_the_clients_steps_are_those_of_its_local_problem():
    client = quadratic(FedDynClient, 1)
    config = {**CONFIG, "local-epochs": 3, "feddyn-alpha": ALPHA}
    g = 0.0
    for start in (5.0, -2.0):  # in the second round g is not 0
        w = start
        for _ in range(3):
            w -= 0.02 * (10 * (w - 1) - g + ALPHA * (w - start))
        g -= ALPHA * (w - start)
        (got,), _, _ = client.fit([np.float32([start])], config)
        assert got[0] == pytest.approx(w, rel=1e-5)
        assert client.store.load("feddyn", config, before=True)[0][0] == pytest.approx(g, rel=1e-5)


@pytest.mark.slow
def test_feddyn_reaches_the_optimum_with_many_local_steps_and_one_client_a_round():
    strategy, epochs = FedDyn(FedDynOptions(1.0)), 60
    server_model, _ = run_quadratics(strategy, FedDynClient, 60, epochs, a_round=1)
    assert server_model == pytest.approx(OPTIMUM, abs=1e-3)


def test_training_that_diverged_is_not_kept():
    client = quadratic(FedDynClient, 1)
    config = {**CONFIG, "learning-rate": 1e4, "local-epochs": 50, "feddyn-alpha": ALPHA}
    refused(lambda: client.fit([np.float32([5.0])], config), r"lower train\.learning-rate")
    assert client.store.load("feddyn", {}, before=False) is None

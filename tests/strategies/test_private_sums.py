"""Secure sums with noise: clipped updates, noise that the clients add, and a budget."""

from dataclasses import replace

import numpy as np
import pytest

from fedapps.algorithms.common.privacy import concentrated_epsilon
from fedapps.algorithms.secure.vector import Terms, to_vector
from fedapps.clients import SecureApp
from fedapps.engines.inline import InlineGrid
from fedapps.errors import UserError
from fedapps.runs.prepare import with_defaults
from fedapps.strategies import (
    AAggFFS,
    FedAvg,
    PrivacyOptions,
    PrivateSum,
    QFedAvg,
    SecureOptions,
    SecureSum,
    TooFewReplies,
    UpdateBound,
)
from tests.helpers import EchoClient, refused, rounds_of, run_inline
from tests.secure_grids import ON, Losing, app_of, run, summed

NUMBERS = 20_000
START = {"w": np.zeros(NUMBERS, np.float32), "running_var": np.zeros(3), "count": np.array(7)}


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
        private(noise=1e-6), start=START, make=by(lambda i: shifts[i]), options=ON
    )
    size = np.sqrt(NUMBERS + 3)
    np.testing.assert_allclose(
        found["w"], np.mean([np.clip(s, -2 / size, 2 / size) for s in shifts]), atol=1e-5
    )
    assert found["count"] == 7
    assert result.train_metrics_clientapp[1].keys() == {"epsilon"}


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
        start=START,
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
    one, other = (run(private(), start=START, options=ON)[0]["w"] for _ in range(2))
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


def test_noise_of_few_units_is_refused():
    """The accountant takes whole numbers for so fine that they are like real ones."""
    terms = Terms("model", "num-examples", False, 5, 1.0, 10, 1.0, True, 1e-6)
    assert terms.noise_scale(3) >= 2**10
    refused(
        lambda: replace(terms, noise=1e-11).noise_scale(3),
        "noise-multiplier = 1e-11: too little for sums",
    )


def test_the_budget_ends_the_run_and_a_failed_round_counts():
    strategy = private(noise=2.0, max_epsilon=concentrated_epsilon(3.5 / 8, 1e-5))
    *_, result = run(strategy, rounds=9, start=START, options=ON)
    assert strategy.releases == 3
    assert strategy.finished
    assert list(result.train_metrics_clientapp) == [1, 2, 3]
    lost = lambda step, number, place: step == "train" and number == 2 and place > 1
    run(failing := private(noise=2.0), rounds=3, start=START, options=ON, lost=lost)
    assert failing.releases == 3


@pytest.mark.parametrize(("noise", "fits"), [(1.0, True), (0.9, False), (0, False), (None, False)])
def test_a_site_can_demand_noise(noise, fits):
    """Client 0 does, so it is in no sum with less noise, and in none in the clear."""
    base = InlineGrid(SecureApp(app_of(lambda i: EchoClient(0.5)).app, lambda context: False), 5)
    base.contexts[1000].node_config["secure-noise"] = "1.0"
    strategy = private(noise=noise) if noise else FedAvg()
    (now,) = summed(
        base, strategy=strategy, options=None if noise is None else ON, start=START
    ).seen
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
    with pytest.raises(TooFewReplies):
        summed(inner, strategy=private(), start=START)
    texts = [reply.error.reason for _, reply in inner.seen if reply.has_error()]
    assert len(texts) == 5
    assert all("noise needs models as replies, shortened updates" in text for text in texts)


def test_a_release_that_cannot_be_counted_does_not_happen():
    def full(_):
        raise OSError("no space left on device")

    strategy = private()
    strategy.count_releases(0, full)
    found, inner, _ = run(strategy, start=START, options=ON)
    assert (found["w"] == 0).all()
    assert "train" not in inner.steps
    assert strategy.releases == 0


def test_without_secure_sums_nobody_would_add_noise():
    refused(lambda: run(private(), start=START), "without secure sums nobody adds noise")


def test_what_is_more_than_an_average_is_refused():
    for strategy in (AAggFFS(FedAvg()), QFedAvg(FedAvg())):
        refused(lambda inner=strategy: private(inner), "only the average can be private")
    assert SecureSum(private()).strategy
    bound = UpdateBound(max_update_norm=1.0)
    refused(
        lambda: run(private(), start=START, options=ON, bound=bound), "clipping-norm = 2 bounds"
    )


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

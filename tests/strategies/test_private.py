"""Clipped sums with noise against closed forms, and Flower's own wrappers and mods
around our strategies.
"""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.serverapp import strategy as flower
from safetensors.numpy import load_file

from fedapps.algorithms.common.privacy import gaussian_epsilon
from fedapps.clients import to_client_app
from fedapps.commands.parser import main
from fedapps.engines.inline import InlineGrid
from fedapps.errors import UserError
from fedapps.records.releases import RELEASES, Releases
from fedapps.runs.assembly import build_strategy, build_task, private as with_privacy
from fedapps.settings.reading import read_settings
from fedapps.strategies import (
    FedAdam,
    FedAvg,
    FedBoost,
    FedBoostOptions,
    FedProx,
    PrivacyOptions,
    Private,
    SuPerFed,
    UpdateBound,
)
from fedapps.tasks.predictor_library import Library as Folder
from tests.ensembles import Tables
from tests.helpers import (
    EchoClient,
    NoNoise,
    arrays_of,
    assert_arrays,
    play,
    refused,
    simulate,
    summary_of,
    that_fails,
)

START = {"w": np.zeros(2, np.float32), "v": np.ones((2, 1), np.float32), "count": np.array(7)}
SHIFTS = [0.1, 2.0, -3.0]


def clipped(c):
    """Return what each client moves each of the four numbers, once its update, twice
    its shift long, is clipped to c.
    """
    return [shift * min(1, c / abs(2 * shift)) for shift in SHIFTS]


def client(i, _=None):
    return EchoClient(SHIFTS[i], num_examples=1 + 5 * i)


APP = to_client_app(lambda context: client(context.node_config["partition-id"]))


def private(strategy, c=1.0, z=1.0, rng=None, **options):
    return Private(strategy, PrivacyOptions(z, c, **options), rng or NoNoise())


@pytest.mark.parametrize("c", [0.5, 1.0, 4.5, 100.0])
def test_the_mean_of_clipped_updates_has_equal_weights(c):
    got = arrays_of(simulate(private(FedAvg(), c), client, 3, START, 1))
    np.testing.assert_allclose(got["w"], np.mean(clipped(c)), rtol=1e-5)
    np.testing.assert_allclose(got["v"], 1 + np.mean(clipped(c)), rtol=1e-5)
    assert got["count"] == 7  # a counter is not released
    assert got["w"].dtype == np.float32


def test_a_failed_client_counts_as_an_update_of_zero():
    """The denominator is the number of sampled clients; otherwise a client could scale
    the others' updates by not answering.
    """
    some = lambda i, _: that_fails(EchoClient)(0) if i == 2 else client(i)
    got = arrays_of(simulate(private(FedAvg()), some, 3, START, 1))
    np.testing.assert_allclose(got["w"], sum(clipped(1.0)[:2]) / 3, rtol=1e-5)


@pytest.mark.parametrize("odd", [np.ones(1), np.ones((2, 2)), np.ones(2, np.int64)])
def test_a_reply_of_another_shape_counts_as_an_update_of_zero(odd):
    """It would be added to every number of an array after its norm was taken of one."""
    strategy, grid = private(FedAvg()), InlineGrid(APP, 3)
    start = ArrayRecord({name: Array(value) for name, value in START.items()})
    messages = strategy.configure_train(1, start, ConfigRecord({"server-round": 1}), grid)
    replies = list(grid.send_and_receive(messages))
    (sent,) = replies[2].content.array_records.values()
    sent["w"] = Array(odd)
    np.testing.assert_allclose(
        strategy.aggregate_train(1, replies)[0]["w"].numpy(), sum(clipped(1.0)[:2]) / 3, rtol=1e-5
    )


def summed(result, count):
    """Return the sum of the updates of so many clients."""
    got = arrays_of(result)
    return count * np.concatenate([got["w"], got["v"].ravel() - 1])


def test_one_client_changes_the_sum_by_the_clipping_norm_at_most():
    rng = np.random.default_rng(0)

    class Any(EchoClient):
        def fit(self, parameters, config):
            scale = 10.0 ** rng.integers(-3, 10)
            return (
                [p + np.asarray(rng.normal(size=p.shape) * scale, p.dtype) for p in parameters],
                int(rng.integers(1, 10**9)),
                {},
            )

    def total(last):
        some = lambda i, _: last if i == 2 else client(i)
        return summed(simulate(private(FedAvg(), 0.7), some, 3, START, 1), 3)

    without = total(that_fails(EchoClient)(0))
    assert max([np.linalg.norm(total(Any(0)) - without) for _ in range(50)]) == pytest.approx(
        0.7, rel=1e-4
    )


LISTS = [[[1.0]] * 2 + [2.0] * 2, [0.5, 0.5, 80.0, 80.0]]


@pytest.mark.parametrize(("name", "told"), [("of", LISTS[0]), ("accuracy", LISTS[1])])
@pytest.mark.parametrize("bound", [UpdateBound(), UpdateBound(max_weight=3, max_relative_update=3)])
def test_no_client_decides_whose_update_counts(name, told, bound):
    """Four clients of whom two report what the other two do not, and a fifth one that
    joins either side, or is not there: the sum differs by its own update at most.
    """

    def total(fifth):
        def make(i):
            return (that_fails(EchoClient) if i == 4 and fifth is None else EchoClient)(
                100.0 if i < 2 else -100.0, metrics={name: told[i] if i < 4 else fifth}
            )

        return summed(play(private(FedAvg(), 1.0), make, 5, START, on={"bound": bound}), 5)

    absent = total(None)
    for fifth in (told[0], told[-1]):
        assert np.linalg.norm(total(fifth) - absent) <= 1 + 1e-4


def test_the_noise_has_the_right_size_and_is_not_the_runs():
    still, big = lambda i, _: EchoClient(0.0), {"w": np.zeros(100_000)}
    one, other = (
        4 * arrays_of(simulate(Private(FedAvg(), PrivacyOptions(2.0, 0.5)), still, 4, big, 1))["w"]
        for _ in range(2)
    )
    assert np.std(one) == pytest.approx(2.0 * 0.5, rel=0.02)
    assert abs(np.mean(one)) < 0.02
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.02  # same seed, other noise


def test_a_server_optimiser_gets_the_noisy_average():
    """FedAdam's first step from m = 0, v = tau^2, on a known noise."""
    got = arrays_of(
        simulate(private(FedAdam(), rng=np.random.default_rng(5)), client, 3, {"w": np.zeros(4)}, 1)
    )["w"]
    delta = (sum(clipped(1.0)) + np.random.default_rng(5).normal(0, 1.0, 4)) / 3
    o = FedAdam().options
    v = o.beta_2 * o.tau**2 + (1 - o.beta_2) * delta**2
    np.testing.assert_allclose(
        got, o.server_learning_rate * (1 - o.beta_1) * delta / (np.sqrt(v) + o.tau), rtol=1e-6
    )


@pytest.mark.parametrize(
    "make", [lambda: FedAvg(weights="uniform"), lambda: FedProx(), lambda: SuPerFed()]
)
def test_without_noise_and_clipping_it_is_the_uniform_average(make):
    got = arrays_of(simulate(private(make(), 1e6), client, 3, START, 2))
    np.testing.assert_allclose(got["w"], 2 * np.mean(SHIFTS), rtol=1e-5)


def test_the_budget_ends_the_run():
    bound = gaussian_epsilon(1.0, 3, 1e-5) + 0.01
    strategy, again = (private(FedAvg(), max_epsilon=bound) for _ in range(2))
    rounds = play(strategy, client, 3, START, 10, evaluate_every=0).seen
    assert len(rounds) == 3
    assert rounds[-1].evaluate_metrics is not None  # the last round of a run is evaluated
    assert rounds[-1].train_metrics["epsilon"] == strategy.privacy_spent()["epsilon"] <= bound
    again.load_state_dict(strategy.state_dict())
    assert [
        now.trained.bytes_down for now in play(again, client, 3, START, 12, first_round=11).seen
    ] == [0]
    refused(
        lambda: private(FedAvg(), max_epsilon=1.0),
        r"max-epsilon = 1\.0: one round with noise-multiplier = 1\.0 spends 4\.38",
    )


class Gradient(EchoClient):
    """Replies to FedBoost with a given gradient."""

    def fit(self, parameters, config):
        h = len(parameters[0])
        return (
            [np.full(h, self.shift), np.ones(h)],
            self.num_examples,
            {"loss": 1.0, "draw": config["draw"]},
        )


LIBRARY = Tables(np.full((4, 3), 1 / 3))
LIBRARY.from_clients = False


def boost(wrap, shifts, examples):
    options = FedBoostOptions(sampling="none", mirror="euclidean", step=0.01)
    make = lambda i, _: Gradient(-0.1 * np.arange(4) * shifts[i], examples[i])
    return arrays_of(
        simulate(wrap(FedBoost(LIBRARY, options, fraction_evaluate=0)), make, 3, {}, 2)
    )["alpha-last"]


def test_fedboosts_gradient():
    np.testing.assert_allclose(
        boost(lambda s: private(s, 1e6), [1.0, 2.0, 3.0], [1, 50, 7]),
        boost(lambda s: s, [1.0, 2.0, 3.0], [5, 5, 5]),
    )
    length = 0.1 * float(np.linalg.norm(np.arange(4)))
    np.testing.assert_allclose(
        boost(lambda s: private(s, length), [1.0, 2.0, 300.0], [1, 1, 1]),
        boost(lambda s: s, [1.0, 1.0, 1.0], [1, 1, 1]),
    )


@pytest.mark.parametrize(
    ("call", "message", "kind"),
    [
        (
            lambda: private(FedBoost(LIBRARY, FedBoostOptions(gradient="unbiased"))),
            "gradient = 'sampled'",
            ValueError,
        ),
        # their values reach every client without noise: an epsilon of the gradients
        # alone would be false
        *(
            (
                lambda origin=origin: private(FedBoost(type("Other", (), {"q": 4, **origin})())),
                "predictors made without the clients' data .*here gradient = 'sampled', .* "
                "made from the",
                ValueError,
            )
            for origin in ({"from_clients": True}, {})
        ),
        (
            lambda: with_privacy(
                FedAvg(),
                read_settings({"dp.noise-multiplier": 1.0}),
                SimpleNamespace(name="silent"),
            ),
            "values that it does not declare",
            UserError,
        ),
    ],
)
def test_gradients_predictors_and_tasks_of_unknown_origin_are_refused(call, message, kind):
    refused(call, message, kind)


NOT_PRIVATE = {
    "a library of the clients' word frequencies": (
        {"method": "fedboost", "task": "unigram"},
        "predictors made from the clients' data",
    ),
    "a vocabulary of the clients' words": (
        {"task": "words", "data.partition": "iid"},
        "computes from the clients' data: the vocabulary",
    ),
    "class weights from all labels": (
        {"data.class-weights": True},
        "computes from the clients' data: the class weights",
    ),
    "a set made by an earlier run": (
        {"data.synthetic": "set"},
        "computes from the clients' data: the synthetic set",
    ),
    "features found in all rows": (
        {"task": "tabular", "data.source": "TABLE"},
        "the values of the columns kind, found in the samples of all clients",
    ),
    "a folder of unknown origin": (
        {"method": "fedboost", "fedboost.library": "FOLDER"},
        "set public-library = true",
    ),
    "a folder with a vocabulary of the clients": (
        {
            "method": "fedboost",
            "task": "unigram",
            "fedboost.library": "FOLDER",
            "fedboost.public-library": True,
        },
        "computes from the clients' data: the vocabulary and the library",
    ),
}


def assembled(given, tmp_path):
    given = {"num-clients": 5, "dp.noise-multiplier": 1.0} | given
    if given.get("data.source") == "TABLE":
        lines = [f"{row % 2},{'ab'[row % 2]},{row},{row % 2}" for row in range(40)]
        (tmp_path / "t.csv").write_text("\n".join(["client,kind,age,label", *lines]))
        given = given | {"data.source": str(tmp_path / "t.csv"), "data.natural-id": "client"}
    if given.get("fedboost.library") == "FOLDER":
        plain = {k: v for k, v in given.items() if not k.startswith(("fedboost.", "dp."))}
        size = len(build_task(read_settings(plain)).library().take([0])["table"][0])
        Folder.from_arrays({"table": np.full((40, size), 1 / size)}).save(tmp_path)
        given["fedboost.library"] = str(tmp_path)
    settings = read_settings(given)
    return build_strategy(settings, build_task(settings))


@pytest.mark.parametrize("case", NOT_PRIVATE)
def test_anything_computed_from_clients_data_before_the_first_round_is_refused(case, tmp_path):
    given, message = NOT_PRIVATE[case]
    if "data.source" in given:
        pytest.importorskip("datasets", reason="needs the extra 'app'")
    refused(lambda: assembled(given, tmp_path), f"^dp.noise-multiplier.*{message}", UserError)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"method": "fedboost"},
        {"method": "fedboost", "fedboost.library": "FOLDER", "fedboost.public-library": True},
        {"method": "fedboost", "task": "ensemble-classification", "ensemble.predictors": 3},
        {"method": "fedevg"},
        {"task": "text"},
        {"task": "tabular"},
    ],
)
def test_private_runs_without_such_data_are_accepted(given, tmp_path):
    assert isinstance(assembled(given, tmp_path), Private)


KILLED = """
import os, signal, sys
from fedapps.commands.parser import main
from fedapps.runs import assembly

class Dies(assembly.Private):
    def configure_evaluate(self, server_round, *arguments):
        if server_round == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().configure_evaluate(server_round, *arguments)

assembly.Private = Dies
main(sys.argv[1:])
"""


def resumed(folder):
    """Resume a run; return its summary."""
    assert main(["run", "--engine", "inline", "--resume", "--out", str(folder)]) == 0
    return summary_of(folder)


def test_a_repeated_round_is_a_further_release(tmp_path, capsys):
    """A run is killed, as by ``kill -9``, when the model of round 5 leaves; the last
    checkpoint is of round 4. Clients will see two noisy sums of round 5.
    """
    pytest.importorskip("matplotlib", reason="needs the extra 'app', for the report")
    folder, free, most = tmp_path / "r", tmp_path / "free", gaussian_epsilon(1.1, 5, 1e-5) + 0.01
    job = ["method=fedadam", "num-rounds=6", "checkpoint-every=2", "train.local-epochs=1"]
    job += ["num-clients=6", "dp.noise-multiplier=1.1", "dp.clipping-norm=0.3"]
    job += [f"dp.max-epsilon={most}", "--out", str(folder)]
    command = [sys.executable, "-c", KILLED, "run", "--engine", "inline", *job]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    shutil.copytree(folder, free)
    settings = (free / "settings.toml").read_text()
    assert f"max-epsilon = {most}\n" in settings
    (free / "settings.toml").write_text(settings.replace(str(most), "0.0"))
    summary = resumed(free)
    assert (summary["epsilon"], summary["delta"]) == (
        pytest.approx(gaussian_epsilon(1.1, 7, 1e-5)),
        1e-5,
    )
    lines = (free / "releases.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3, 4, 5, 5, 6]
    # with the budget a sixth release would spend more: the run ends with the model of
    # its checkpoint
    summary = resumed(folder)
    assert {name: summary[name] for name in ("epsilon", "rounds-completed", "status")} == {
        "epsilon": pytest.approx(most - 0.01),
        "rounds-completed": 4,
        "status": "completed",
    }
    model, kept = (
        load_file(folder / place / "model.safetensors") for place in (".", "checkpoint/4")
    )
    assert all(np.array_equal(model[name], kept[name]) for name in kept)
    shutil.rmtree(folder / "checkpoint")
    assert main(["run", "--engine", "inline", "--resume", "--out", str(folder)]) == 2
    assert "no checkpoint, and its 5 releases have spent" in capsys.readouterr().err


def test_a_run_that_has_spent_its_budget_keeps_its_last_round(tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra 'app', for the report")
    most = gaussian_epsilon(1.1, 3, 1e-5) + 0.01
    job = ["num-rounds=6", "checkpoint-every=2", "train.local-epochs=1", "num-clients=6"]
    job += ["dp.noise-multiplier=1.1", f"dp.max-epsilon={most}", "--out", str(tmp_path)]
    assert main(["run", "--engine", "inline", *job]) == 0
    ended, model = summary_of(tmp_path), load_file(tmp_path / "model.safetensors")
    again = resumed(tmp_path)
    assert again["rounds-completed"] == ended["rounds-completed"] == 3
    assert again["epsilon"] == ended["epsilon"]
    assert_arrays(load_file(tmp_path / "model.safetensors"), model)


def test_a_release_that_cannot_be_counted_does_not_happen():
    strategy = private(FedAvg())

    def full(server_round):
        if server_round == 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    strategy.count_releases(0, full)
    models = [arrays_of(now)["w"] for now in play(strategy, client, 3, START, 3).seen]
    assert np.array_equal(models[0], models[1])
    assert not np.array_equal(models[1], models[2])
    assert strategy.releases == 2


def test_a_release_is_on_disk_when_it_is_counted(tmp_path, monkeypatch):
    opened, synced = {}, []
    plain = os.open

    def noted(path, flags, *rest, **more):
        opened[os.path.basename(path)] = file = plain(path, flags, *rest, **more)
        assert flags & os.O_DSYNC or os.path.basename(path) != RELEASES
        return file

    monkeypatch.setattr(os, "open", noted)
    monkeypatch.setattr(os, "fsync", synced.append)
    releases = Releases(tmp_path, "x")
    releases.add(1)
    assert RELEASES in opened
    assert synced == [opened[tmp_path.name]]  # so that the file has its name
    releases.add(2)
    assert len(synced) == 1


def test_a_torn_line_counts_as_a_release(tmp_path):
    (tmp_path / RELEASES).write_text('{"release": 1}\n{"rele')
    Releases(tmp_path, "x").add(2)
    assert Releases(tmp_path, "y").count == 3


# --- Flower's own ---------------------------------------------------------------------

FLOATS = {name: value for name, value in START.items() if value.dtype == np.float32}


@pytest.mark.parametrize(
    ("wrap", "mods"),
    [
        (flower.DifferentialPrivacyServerSideFixedClipping, None),
        (flower.DifferentialPrivacyClientSideFixedClipping, [fixedclipping_mod]),
        (None, [LocalDpMod(1.0, 0.0, 1.0, 1e-5)]),
    ],
    ids=["at the server", "at the clients", "a mod alone"],
)
@pytest.mark.parametrize("kind", [FedAvg, FedProx, SuPerFed])
def test_flowers_wrappers_and_mods_clip_around_our_strategies(kind, wrap, mods):
    strategy = kind(weights="uniform")
    app = to_client_app(lambda c: client(c.node_config["partition-id"]), mods)
    inner = lambda *_: InlineGrid(app, 3)
    result = play(wrap(strategy, 0.0, 1.0, 3) if wrap else strategy, None, 3, FLOATS, inner=inner)
    assert len(result.evaluate_metrics_clientapp) == 1
    np.testing.assert_allclose(arrays_of(result)["w"], np.mean(clipped(1.0)), rtol=1e-4)

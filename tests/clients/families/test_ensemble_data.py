import numpy as np
import pytest

from fedapps.algorithms.ensembles.sparse_tables import compact, is_packed, pack, unpack
from fedapps.clients import TrainOptions
from fedapps.clients.families.ensemble_data import DensityData, Histogram
from fedapps.clients.families.torch_ensemble_data import TorchEnsembleData
from tests.helpers import assert_arrays, blobs, refused, small_net

UNIFORM = np.full(3, 1 / 3)
OTHER_SIZE = "predictors over 5 outcomes, but the client counts 6"
COUNTS = {0: 3, 2: 1, 4: 4}


def density(loss="log", epsilon=0.1):
    return DensityData(
        Histogram.of_counts(COUNTS, 6), Histogram.of_counts({1: 1, 2: 1}, 6), epsilon, loss
    )


def some_tables(size=6):
    tables = np.random.default_rng(1).dirichlet(np.ones(size), 3)
    tables[tables < 0.1] = 0
    return {"table": (tables / tables.sum(1, keepdims=True)).astype(np.float32)}


def numeric_gradient(data, predictors, alpha, step=1e-5):
    moved = [
        alpha + sign * step * np.eye(len(alpha))[k] for k in range(len(alpha)) for sign in (1, -1)
    ]
    losses = np.array([data.loss_and_gradient(predictors, a)[0] for a in moved]).reshape(-1, 2)
    return (losses[:, 0] - losses[:, 1]) / (2 * step)


def two_predictors(loss):
    """Return data of three outcomes, and the tables of two predictors."""
    return DensityData(Histogram.of_counts({0: 3, 2: 1}, 3), None, 0.1, loss), {
        "table": np.array([[1, 0, 0], [0.5, 0.5, 0]])
    }


def test_the_log_loss_by_hand():
    # epsilon 0.1: probabilities 0.9 h + 0.1 / 3
    data, tables = two_predictors("log")
    alpha, u = np.array([0.25, 0.75]), 0.1 / 3
    first, last = 0.9 * (0.25 + 0.75 * 0.5) + u, u
    loss, gradient, norms = data.loss_and_gradient(tables, alpha)
    assert loss == pytest.approx(-0.75 * np.log(first) - 0.25 * np.log(last))
    np.testing.assert_allclose(
        gradient, [-0.75 * (0.9 + u) / first - 0.25, -0.75 * (0.45 + u) / first - 0.25]
    )
    np.testing.assert_array_equal(norms, 0)


def test_the_squared_loss_by_hand():
    data, tables = two_predictors("squared")
    loss, gradient, norms = data.loss_and_gradient(tables, np.array([0.5, 0.5]))
    mixed = np.array([0.75, 0.25, 0])
    assert loss == pytest.approx(
        0.75 * np.sum((mixed - [1, 0, 0]) ** 2) + 0.25 * np.sum((mixed - [0, 0, 1]) ** 2)
    )
    np.testing.assert_allclose(gradient, 2 * tables["table"] @ (mixed - [0.75, 0, 0.25]))
    np.testing.assert_allclose(norms, [1, 0.5])


@pytest.mark.parametrize("loss", ["log", "squared"])
def test_losses_of_single_predictors_are_those_of_weights_that_take_one(loss):
    data, tables = two_predictors(loss)
    np.testing.assert_allclose(
        data.singles(tables), [data.loss_and_gradient(tables, one)[0] for one in np.eye(2)]
    )


@pytest.mark.parametrize("loss", ["log", "squared"])
def test_packed_tables_give_the_same_numbers(loss):
    tables, data, alpha = some_tables(), density(loss), np.array([0.2, 0.5, 0.3])
    packed = pack(tables["table"])
    assert packed["values"].size < tables["table"].size
    np.testing.assert_array_equal(unpack(packed), tables["table"])
    assert_arrays(
        data.loss_and_gradient(packed, alpha), data.loss_and_gradient(tables, alpha), rtol=1e-12
    )
    assert data.score(packed, alpha) == pytest.approx(data.score(tables, alpha))


def test_only_tables_that_get_smaller_are_packed():
    sparse, dense = np.eye(20, dtype=np.float32), np.full((3, 20), 0.05, np.float32)
    packed = compact({"table": sparse})
    assert is_packed(packed)
    assert sum(array.nbytes for array in packed.values()) < sparse.nbytes / 2
    np.testing.assert_array_equal(unpack(packed), sparse)
    for other in ({"table": dense}, {"weight": sparse}, {"table": sparse, "bias": sparse}):
        assert compact(other) is other


EMPTY = np.array([[0, 0, 0], [0, 1, 0], [0, 0, 0]], np.float32)
PACKED = pack(EMPTY)


def test_empty_rows_are_packed():
    np.testing.assert_array_equal(unpack(PACKED), EMPTY)


def test_smoothing_before_or_after_mixing_is_the_same():
    tables, data, alpha = some_tables(), density(), np.array([0.2, 0.5, 0.3])
    assert data.score({"table": (alpha @ tables["table"])[None]}, np.ones(1))[
        "loss"
    ] == pytest.approx(data.score(tables, alpha)["loss"])


def test_scores_compare_with_the_uniform_and_the_best_single_predictor():
    tables, data = some_tables(), density()
    scores = data.score(tables, np.array([0.2, 0.5, 0.3]))
    best = int(np.argmin(data.singles(tables)))
    wanted = {
        "best-single-loss": data.score(tables, np.eye(3)[best])["loss"],
        "uniform-loss": data.score(tables, UNIFORM)["loss"],
        "perplexity": np.exp(scores["loss"]),
        "train-loss": data.loss_and_gradient(tables, [0.2, 0.5, 0.3])[0],
    }
    assert {name: scores[name] for name in wanted} == pytest.approx(wanted)
    assert scores["loss"] != pytest.approx(scores["train-loss"])
    assert "perplexity" not in density("squared").score(tables, UNIFORM)
    of_one = data.score({"table": tables["table"][:1]}, np.ones(1))
    assert of_one.keys() == {"loss", "perplexity", "train-loss"}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Histogram.of_counts(COUNTS, 4), "vocabulary has 4 entries"),
        (lambda: density().loss_and_gradient(some_tables(size=5), UNIFORM), OTHER_SIZE),
        (
            lambda: density().loss_and_gradient(pack(some_tables(size=5)["table"]), UNIFORM),
            OTHER_SIZE,
        ),
        (lambda: density().loss_and_gradient(some_tables(), np.ones(2)), "weight"),
        (lambda: density(epsilon=0), r"epsilon = 0: choose a value in \(0, 1\)"),
        (lambda: density("lgo"), "loss = 'lgo': did you mean 'log'"),
        (lambda: DensityData(Histogram.of_counts({}, 6)), "no training data"),
        (lambda: unpack({**PACKED, "outcomes": PACKED["outcomes"] + 5}), "packed tables"),
        (lambda: unpack({**PACKED, "outcomes": PACKED["outcomes"] - 4}), "packed tables"),
        (lambda: unpack({**PACKED, "starts": PACKED["starts"][::-1]}), "packed tables"),
        (lambda: unpack({**PACKED, "values": np.ones(7, np.float32)}), "packed tables"),
        (
            lambda: torch_data().loss_and_gradient(
                {**some_nets(), "3.bias": np.zeros((3, 2), np.float32)}, UNIFORM
            ),
            r"array '3\.bias' of a predictor has shape \(2,\), the client's model \(3,\)",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    refused(call, message)


# --- torch predictors -----------------------------------------------------------------


def torch_data(loss="log"):
    data = blobs(n=50)
    return TorchEnsembleData(small_net(0), data.train, data.test, loss, 0.05)


def some_nets(h=3):
    states = [small_net(seed).state_dict() for seed in range(1, h + 1)]
    return {name: np.stack([state[name].numpy() for state in states]) for name in states[0]}


def test_probabilities_are_those_of_the_nets_themselves():
    data, nets = torch_data(), some_nets()
    expected = [small_net(seed)(data.test.x).softmax(1) for seed in (1, 2, 3)]
    assert_arrays(data.probabilities(nets, data.test), expected, atol=1e-6)


@pytest.mark.parametrize("loss", ["log", "squared"])
def test_the_gradient_of_a_torch_ensemble_is_the_slope_of_its_loss(loss):
    data, nets, alpha = torch_data(loss), some_nets(), np.array([0.7, 0.9, 0.3])
    np.testing.assert_allclose(
        data.loss_and_gradient(nets, alpha)[1], numeric_gradient(data, nets, alpha), rtol=1e-5
    )


def test_losses_and_norms_of_a_torch_ensemble_by_the_definition():
    data, nets, alpha = torch_data("squared"), some_nets(), np.array([0.2, 0.5, 0.3])
    outputs, labels = data.probabilities(nets, data.train), data.train.y.numpy()
    mixed = np.einsum("h,hnl->nl", alpha, outputs)
    loss, _, norms = data.loss_and_gradient(nets, alpha)
    assert loss == pytest.approx(((mixed - np.eye(3)[labels]) ** 2).sum(1).mean())
    np.testing.assert_allclose(norms, (outputs**2).sum(2).mean(1), rtol=1e-6)
    log = torch_data().loss_and_gradient(nets, alpha)[0]
    smooth = 0.95 * mixed + 0.05 / 3
    assert log == pytest.approx(-np.log(smooth[np.arange(len(labels)), labels]).mean())


def test_scores_of_a_torch_ensemble():
    data, nets = torch_data(), some_nets()
    scores = data.score(nets, np.array([0.2, 0.5, 0.3]))
    one = {name: array[1:2] for name, array in nets.items()}
    hits = (small_net(2)(data.test.x).argmax(1) == data.test.y).double().mean()
    of_one = data.score(one, np.ones(1))
    assert of_one["accuracy"] == scores["single-accuracy"][1] == pytest.approx(float(hits))
    assert {"loss", "train-loss", "best-single-accuracy"} <= scores.keys()
    assert data.score(nets, UNIFORM)["accuracy"] == scores["uniform-accuracy"]
    assert scores["single-train-loss"] == [
        data.loss_and_gradient(nets, single)[0] for single in np.eye(3)
    ]
    assert not {"single-accuracy", "single-train-loss"} & of_one.keys()


def test_a_net_keeps_its_own_parameters():
    data = torch_data()
    data.score(some_nets(), UNIFORM)
    data.train_predictor(TrainOptions().to_config())
    assert_arrays(data.model.state_dict(), small_net(0).state_dict())

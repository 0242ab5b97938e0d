"""The classifier that evaluates a set, sets on disk and runs that start from them,
pictures, and mistakes about all of these.
"""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, RecordDict

from fedapps.clients.base.store import MessageStore
from fedapps.clients.base.training import set_arrays
from fedapps.data.images import save_set
from fedapps.errors import UserError
from fedapps.models.generative_nets import build_energy_net
from fedapps.records.synthetic_set import grid
from fedapps.runs.assembly import build_client, build_strategy, build_task
from fedapps.runs.prepare import assemble, with_defaults
from fedapps.settings.reading import read_settings
from fedapps.tasks.set_evaluator import SetEvaluator
from fedapps.tasks.set_training import augmented
from tests.helpers import assert_arrays, refused, run_inline

CLIENTS = 4


def task_with(**keys):
    config = {"task": "digits", "num-clients": CLIENTS, "model.name": "small-cnn"}
    given = {key.replace("__", ".").replace("_", "-"): value for key, value in keys.items()}
    return build_task(read_settings({**config, "data.partition": "iid", **given}))


def real_digits(task, each=10):
    """Return as many real digits of each class, from the clients' training samples."""
    parts = [task.client_data(client, CLIENTS).train for client in range(CLIENTS)]
    x, y = (torch.cat([getattr(part, name) for part in parts]).numpy() for name in "xy")
    rows = np.concatenate([np.flatnonzero(y == label)[:each] for label in range(10)])
    return x[rows], y[rows]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return the folder of a set of 100 real digits, and its images."""
    folder = tmp_path_factory.mktemp("made") / "set"
    x, y = real_digits(task_with())
    save_set(folder, x, y, 10)
    return folder, x, y


def accuracy(model, data):
    with torch.no_grad():
        return float((model(data.x).argmax(1) == data.y).float().mean())


@pytest.mark.slow
def test_a_hundred_real_digits_are_a_good_set():
    """What there is to reach: and noise is no set, and lies further off."""
    task = task_with(synthetic__reference="clients", method="fedevg")
    evaluate = SetEvaluator(task)
    x, y = real_digits(task)
    arrays, measured = evaluate(x, y, 1)
    assert measured["test-accuracy"] > 0.85
    noise = evaluate(np.random.default_rng(0).random(x.shape), y, 1)[1]
    assert noise["test-accuracy"] < 0.4
    assert noise["frechet"] > 2 * measured["frechet"] > 0
    assert list(arrays) == list(task.model_fn(0).state_dict())


def test_augmented_images_stay_near():
    x = torch.zeros(5, 2, 8, 8)
    x[:, :, 3:5, 3:5] = 1.0
    out = augmented(x, np.random.default_rng(0))
    assert out.shape == x.shape
    assert out[:, :, :1].max() == 0  # nothing of the middle gets to the border
    assert (out.flatten(1).sum(1) > 4).all()


def test_a_saved_set_is_read_again(saved):
    folder, x, y = saved
    got = task_with(data__synthetic=str(folder)).synthetic_set()
    np.testing.assert_allclose(got.x.numpy(), x, atol=1 / 510 + 1e-6)
    np.testing.assert_array_equal(got.y.numpy(), y)


@pytest.mark.slow
def test_a_run_starts_from_a_set(saved):
    """Pre-trained on it the model starts well above chance; mixed in, the clients hold
    its samples for training only.
    """
    folder, x, _ = saved
    task = task_with(data__synthetic=str(folder))
    model = task.model_fn(0)
    set_arrays(model, list(task.initial_arrays().values()))
    assert accuracy(model, task.client_data(0, CLIENTS).test) > 0.8
    plain = task_with()
    mixing = task_with(data__synthetic=str(folder), data__synthetic_use="mix")
    own, with_set = plain.client_data(1, CLIENTS), mixing.client_data(1, CLIENTS)
    assert len(with_set.train) == len(own.train) + len(x)
    torch.testing.assert_close(with_set.train.x[: len(own.train)], own.train.x)
    torch.testing.assert_close(with_set.test.x, own.test.x)
    assert_arrays(mixing.initial_arrays(), plain.initial_arrays())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"method": "fedevg", "synthetic.samples": 105},
            "synthetic.samples = 105 is not a multiple of the 10 classes",
        ),
        ({"method": "fedevg", "fedevg.net": "resnet"}, "fedevg.net = 'resnet'"),
        ({"method": "fedevg", "fedevg.net": "energy-cnn,mlp"}, "fedevg.net = 'mlp'"),
        (
            {"method": "fedevg", "fedevg.low": 0.5},
            r"fedevg.low = 0.5: images have values in \[0, 1\] or \[-1, 1\]",
        ),
        ({"method": "fedcvae", "synthetic.reference": "tests"}, "synthetic.reference = 'tests'"),
        ({"method": "fedcgan", "fedcgan.hidden": 0}, "fedcgan.hidden = 0"),
        (
            {"data.synthetic": "/no/such/folder"},
            "data.synthetic = '/no/such/folder': there is no such folder",
        ),
        ({"data.synthetic-use": "train"}, "data.synthetic-use = 'train'"),
        (
            {"method": "fedevg", "synthetic.reference": "test"},
            "synthetic.reference = 'test': the digits have one split: choose 'clients'",
        ),
        (
            {"task": "tabular", "data.synthetic": "."},
            "task 'tabular' does not start from a set of images",
        ),
    ],
)
def test_mistakes_are_said_before_a_run(settings, message):
    refused(lambda: assemble(with_defaults({"method": "fedavg", **settings})), message, UserError)


def test_colour_and_grey_do_not_mix(tmp_path):
    coloured = np.random.default_rng(0).random((20, 3, 8, 8))
    save_set(tmp_path / "set", coloured, np.arange(20) % 10, 10)
    refused(
        lambda: assemble(with_defaults({"data.synthetic": str(tmp_path / "set")})),
        "its images are 8 x 8 with 3 channels, the task's 8 x 8 with 1 channel",
        UserError,
    )


def test_each_site_has_the_next_of_the_named_nets():
    given = {"method": "fedevg", "num-clients": 5, "data.partition": "iid"}
    settings = read_settings(given | {"fedevg.net": "energy-cnn, energy-mlp,energy-patches"})
    task, store = build_task(settings), MessageStore(RecordDict())
    nets = [build_client(settings, task, client, 5, store).net_fn(0) for client in range(5)]
    nets += [build_energy_net(f"energy-{n}", (1, 8, 8), 10, 0) for n in ("cnn", "mlp", "patches")]
    *sizes, cnn, mlp, patches = (sum(p.numel() for p in net.parameters()) for net in nets)
    assert len({cnn, mlp, patches}) == 3
    assert sizes == [cnn, mlp, patches, cnn, mlp]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedcvae", "fedcgan"])
def test_the_default_job_of_a_generator_learns_to_draw(method, tmp_path):
    """With the default numbers of rounds, epochs and channels, on a ninth of the
    digits; chance is 10 %.
    """
    small = {"num-clients": 2, "data.partition": "iid", "data.max-samples": 200, "seed": 1}
    job = {"method": method, "task": "digits", **small}
    assert run_inline(tmp_path / "run", **job)["accuracy-mean"] > 0.5


# --- pictures -------------------------------------------------------------------------


def test_a_grid_has_a_row_a_class():
    x, y = np.zeros((6, 1, 8, 8), np.float32), np.array([0, 0, 1, 1, 2, 2])
    x[2:4] = 1.0
    picture = np.asarray(grid(x, y))
    tiles = picture[:, 28:]
    assert np.unique(tiles[5 : 8 * 20, 1 : 8 * 20]).tolist() == [0]  # the first class is black
    assert tiles[tiles.shape[0] // 2, 8] == 255
    assert picture[:, :28].min() < 128  # the labels
    assert np.asarray(grid(np.zeros((2, 3, 8, 8)), np.array([0, 1]))).ndim == 3


@pytest.mark.slow
def test_a_run_leaves_its_set_and_its_pictures(tmp_path):
    out = tmp_path / "r"
    made = {"samples": 20, "steps": 2, "reference": "clients"}
    job = {f"synthetic.{key}": value for key, value in made.items()} | {"method": "fedevg"}
    summary = run_inline(out, **job, **{"num-rounds": 2, "num-clients": 3})
    assert (out / "report.html").read_text().count("Synthetic images") == 2  # heading, picture
    assert {"test-accuracy", "frechet", "accuracy-mean"} <= set(summary)
    assert summary["bytes-up"] < 2 * 3 * (4 * 20 * 65 + 700)
    source = str(out / "synthetic" / "set")
    job = {"data.partition": "iid", "num-clients": 2, "num-rounds": 1, "train.local-epochs": 1}
    run_inline(tmp_path / "on-it", **job, **{"data.source": source, "clients-per-round": 0})
    with_set = task_with(data__synthetic=source, data__synthetic_use="mix")
    plain = len(task_with().client_data(0, CLIENTS).train)
    assert len(with_set.client_data(0, CLIENTS).train) == plain + 20


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedevg", "fedcgan", "fedcvae"])
def test_a_server_that_has_no_image_starts_all_the_same(method):
    """Where the sites have data of their own, shape and classes are those of the
    settings.
    """
    settings = read_settings(
        {"method": method, "sites.labels": "a,b,c,d", "sites.shape": "3,8,8", "num-clients": 2}
    )
    task = build_task(settings)
    strategy = build_strategy(settings, task)
    first = strategy.first_arrays().items()
    x, y = strategy.samples(ArrayRecord({name: Array(np.asarray(array)) for name, array in first}))
    assert (x.shape, np.bincount(y).tolist()) == ((100, 3, 8, 8), [25] * 4)
    classifier, measured = strategy.evaluator(x[::10], y[::10], 1)
    assert (list(classifier), measured) == (list(task.model_fn(0).state_dict()), {})

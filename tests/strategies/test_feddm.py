"""FedDM: its loss by hand, the images of a client, what the server pools and refuses,
and that images look like their class.
"""

import numpy as np
import pytest
import torch
from torch import nn

from fedapps.algorithms.synthetic.matching import matching_loss, nearby
from fedapps.clients import ClassMeansClient, ClientData, FedDMClient, Split
from fedapps.models.image_nets import build_model
from fedapps.strategies import ClassMeans, FedDM, FedDMOptions
from fedapps.strategies.base.capabilities import declared
from fedapps.strategies.base.messages import to_record
from tests.helpers import EchoClient, arrays_of, assert_arrays, refused, simulate

SHAPE, CLASSES = (1, 8, 8), 3
TRAIN = {"batch-size": 16, "seed": 3}
#: The rows of an image that are bright, by class.
PROTOTYPES = torch.full((CLASSES, *SHAPE), 0.1)
for label in range(CLASSES):
    PROTOTYPES[label, :, 3 * label : 3 * label + 2] = 0.9


def data(seed, classes, n=24):
    rng = np.random.default_rng(seed)
    y = torch.tensor(rng.choice(classes, n))
    noise = torch.tensor(rng.normal(size=(n, *SHAPE)), dtype=torch.float32)
    split = Split((PROTOTYPES[y] + 0.05 * noise).clamp(0, 1), y)
    return ClientData(split, split, split)


def model_fn(seed):
    return build_model("small-cnn", SHAPE, CLASSES, seed)


def named(seed):
    return {name: tensor.numpy() for name, tensor in model_fn(seed).state_dict().items()}


class Judge:
    """Returns new weights in every call, and records the samples of each call."""

    def __init__(self):
        self.seen = []

    def __call__(self, x, y, server_round):
        self.seen.append((server_round, x, y))
        return named(100 + server_round), {}


def feddm(judge=None, **options):
    return FedDM(
        SHAPE, CLASSES, named(5), judge or Judge(), FedDMOptions(**({"steps": 2} | options)), seed=3
    )


def config_of(strategy, server_round=1):
    return {**TRAIN, **strategy.train_options(server_round, 9), "server-round": server_round}


class Line(nn.Module):
    """Features (2 x, 3 x), output 5 times the first and 7 times the second of these."""

    def __init__(self):
        super().__init__()
        self.body, self.classifier = nn.Linear(1, 2, bias=False), nn.Linear(2, 1, bias=False)
        self.body.weight.data.copy_(torch.tensor([[2.0], [3.0]]))
        self.classifier.weight.data.copy_(torch.tensor([[5.0, 7.0]]))


def test_the_loss_is_that_of_mean_features_and_outputs_class_by_class():
    net, made = Line(), torch.tensor([[1.0], [4.0]], requires_grad=True)
    real = [torch.tensor([[0.0], [1.0]]), torch.tensor([[2.0], [4.0], [6.0]])]  # means 0.5 and 4
    loss = matching_loss(net, nearby(net, 0.0), real, list(made.split(1)))
    factor = 2**2 + 3**2 + (5 * 2 + 7 * 3) ** 2  # of the squared distance between the means
    assert float(loss.detach()) == pytest.approx(factor * 0.5**2)
    loss.backward()
    np.testing.assert_allclose(made.grad, [[2 * factor * 0.5], [0.0]], rtol=1e-6)
    assert net.body.weight.grad is None  # the net only looks


def test_images_are_matched_at_a_distance_from_the_received_weights():
    net = model_fn(0)
    moved = nearby(net, 2.5)
    gap = torch.cat(
        [(moved[name] - parameter.detach()).flatten() for name, parameter in net.named_parameters()]
    )
    assert float(gap.norm()) == pytest.approx(2.5, rel=1e-5)
    assert_arrays(nearby(net, 0.0), dict(net.named_parameters()))


def test_a_client_sends_images_of_its_own_classes_and_no_net():

    def fit(client_id=0, weights=5):
        return FedDMClient(model_fn, data(0, [0, 2]), client_id).fit(
            list(named(weights).values()), config_of(feddm(images=2))
        )

    (x, y), samples, metrics = fit()
    assert (x.shape, y.tolist()) == ((4, *SHAPE), [0, 0, 2, 2])
    assert (x.min() >= 0, x.max() <= 1, samples) == (True, True, 24)
    assert np.isfinite(metrics["loss"])
    np.testing.assert_array_equal(x, fit()[0][0])
    # the same noise, matched at other weights
    assert np.abs(x - fit(weights=6)[0][0]).max() > 1e-4
    # another client starts from noise of its own
    assert np.abs(x - fit(client_id=1)[0][0]).max() > 0.1


def test_images_outside_the_range_are_refused_by_the_client():
    wrong = data(0, [0])
    wrong.train.x.mul_(255)
    client, sent = FedDMClient(model_fn, wrong, 0), list(named(5).values())
    refused(
        lambda: client.fit(sent, config_of(feddm())),
        r"images with values in \[.*\], but low = 0: bring them to \[0, 1\]",
    )


class Says(EchoClient):
    """Replies with the given arrays, but not in rounds ``lost``; keeps what it gets."""

    def __init__(self, *arrays, lost=()):
        super().__init__(0.0)
        self.arrays, self.lost, self.sent = list(arrays), lost, []

    def fit(self, parameters, config):
        self.sent.append((config["server-round"], parameters))
        if config["server-round"] in self.lost:
            raise RuntimeError("no power")
        return self.arrays, 7, {"loss": 0.5}


def images(*labels, value=0.5):
    return np.full((len(labels), *SHAPE), value, np.float32), np.array(labels, np.int32)


def run(strategy, clients, rounds=1, evaluate_every=0):
    start, client = strategy.first_arrays(), lambda i, _: clients[i]
    return simulate(
        strategy, client, len(clients), start, rounds, TRAIN, **{"evaluate_every": evaluate_every}
    )


def test_the_server_pools_the_images_of_a_round_and_trains_the_next_classifier_on_them():
    judge, clients = Judge(), [Says(*images(0, 2, value=0.25)), Says(*images(1, value=3.0))]
    pooled = arrays_of(run(feddm(judge), clients, rounds=2))
    assert sorted(pooled["y"].tolist()) == [0, 1, 2]
    values = dict(zip(pooled["y"].tolist(), pooled["x"][:, 0, 0, 0].tolist(), strict=True))
    assert values == {0: 0.25, 1: 1.0, 2: 0.25}  # clipped to the range of images
    for now, parameters in clients[0].sent + clients[1].sent:
        assert_arrays(parameters, named(5 if now == 1 else 101).values())
    # before round 2, and at the end
    judged = [(now, sorted(y.tolist())) for now, _, y in judge.seen]
    assert judged == [(1, [0, 1, 2]), (2, [0, 1, 2])]


def test_a_set_that_was_evaluated_is_not_trained_on_again():
    """It is evaluated after every round and sent in the next: one training per round,
    not two.
    """
    judge, client = Judge(), Says(*images(0))
    run(feddm(judge), [client], rounds=3, evaluate_every=1)
    assert [now for now, *_ in judge.seen] == [1, 2, 3]
    for (_, received), what in zip(client.sent, [5, 101, 102], strict=True):
        np.testing.assert_array_equal(received[0], next(iter(named(what).values())))


def test_a_first_round_without_images_leaves_the_random_weights(caplog):
    """A classifier trained on the initial noise would have learnt from noise."""
    judge, late = Judge(), Says(*images(0, 2), lost=(1,))
    result = run(feddm(judge), [late], rounds=3)
    for (_, received), what in zip(late.sent, [5, 5, 102], strict=True):
        np.testing.assert_array_equal(received[0], next(iter(named(what).values())))
    assert [now for now, *_ in judge.seen] == [2, 3]
    assert arrays_of(result)["y"].tolist() == [0, 2]


def test_images_of_replying_clients_replace_the_set_and_a_round_without_replies_keeps_it():
    """Client 1 is lost in round 1, all clients in round 2."""
    clients = [
        Says(*images(0, value=0.1), lost=(2,)),
        Says(*images(1, value=0.2), lost=(1, 2)),
        Says(*images(2, value=0.3), lost=(2,)),
    ]
    judge = Judge()
    pooled = arrays_of(run(feddm(judge), clients, rounds=3))
    sets = [(now, y.tolist()) for now, _, y in judge.seen]
    # before rounds 2 and 3, and at the end; in the order of client ids
    assert sets == [(1, [0, 2]), (2, [0, 2]), (3, [0, 1, 2])]
    for x, y in ((judge.seen[1][1], judge.seen[1][2]), (pooled["x"], pooled["y"])):
        np.testing.assert_allclose(
            x[:, 0, 0, 0], [(0.1, 0.2, 0.3)[label] for label in y], rtol=1e-6
        )


def test_with_sampling_the_set_holds_the_images_of_the_last_sample():
    strategy = feddm()
    strategy.fraction_train = 0.4
    clients = [Says(*images(i % CLASSES, value=i / 10)) for i in range(5)]
    pooled = arrays_of(run(strategy, clients, rounds=3))
    asked = [(now, i) for i, client in enumerate(clients) for now, _ in client.sent]
    last = sorted(i for now, i in asked if now == 3)
    assert [sum(now == t for now, _ in asked) for t in (1, 2, 3)] == [2, 2, 2]
    assert pooled["y"].tolist() == [i % CLASSES for i in last]
    np.testing.assert_allclose(pooled["x"][:, 0, 0, 0], [i / 10 for i in last], rtol=1e-6)


@pytest.mark.parametrize(
    ("arrays", "fault"),
    [
        (images(0, 0), "it sent 2 images of one class (limit 1)"),
        (images(0, 3), "its labels are not from 0 to 2"),
        (images(-1), "its labels are not from 0 to 2"),
        ((images(0)[0], images(0, 1)[1]), "its reply is not images of shape"),
        ((images(0)[0][:, :, :4], images(0)[1]), "its reply is not images of shape"),
        ((images(0)[0], images(0)[1].astype(np.float32)), "its reply is not images of shape"),
        (images(), "its labels are not from 0 to 2"),
        (images(0)[:1], "its reply is not images of shape"),
    ],
)
def test_an_impossible_reply_is_skipped_and_its_client_named(arrays, fault, caplog):
    result = run(feddm(), [Says(*images(0, 1, 2)), Says(*arrays)])
    assert arrays_of(result)["y"].tolist() == [0, 1, 2]
    assert f"skipped client 1: {fault}" in caplog.text


def test_the_images_look_like_their_class():
    clients = [
        FedDMClient(model_fn, data(i, classes), i)
        for i, classes in enumerate([[0, 1], [1, 2], [2]])
    ]
    result = run(feddm(steps=150), clients)
    x, y = (torch.tensor(array) for array in (arrays_of(result)["x"], arrays_of(result)["y"]))
    assert sorted(y.tolist()) == [0, 1, 1, 2, 2]
    assert torch.equal(((x[:, None] - PROTOTYPES[None]) ** 2).flatten(2).sum(2).argmin(1), y.long())


# --- class means ----------------------------------------------------------------------

# Class means: the sums of all clients give the means of the pooled images.


SMALL, KINDS = (1, 4, 4), 4


def means_net(seed):
    return build_model("small-cnn", (1, 8, 8), KINDS, seed)


def client_data(client):
    """Clients of unlike sizes; of the first nobody has class 3."""
    rng = np.random.default_rng(client)
    n = 5 + 20 * client
    y = torch.tensor(rng.choice([0, 1, 2] if client < 2 else [client % 3], n))
    split = Split(torch.tensor(rng.random((n, *SMALL)), dtype=torch.float32), y)
    return ClientData(split, split, split)


def strategy():
    return ClassMeans(SMALL, KINDS, lambda x, y, t: ({}, {}), fraction_evaluate=0.0)


def test_the_images_are_the_means_of_the_pooled_classes():
    ours, client = (
        strategy(),
        lambda i, store: ClassMeansClient(means_net, client_data(i), i, store),
    )
    x, y = ours.samples(simulate(ours, client, 4, ours.first_arrays(), num_rounds=2).arrays)
    parts = [client_data(client).train for client in range(4)]
    pooled, labels = (np.concatenate([getattr(part, key) for part in parts]) for key in "xy")
    assert y.tolist() == [0, 1, 2], "nobody has class 3"
    for image, label in zip(x, y, strict=True):
        np.testing.assert_allclose(image, pooled[labels == label].mean(0), atol=1e-6)


def test_only_weighted_sums_are_used_and_noise_leaves_images():
    ours = strategy()
    assert declared(ours).aggregation == "weighted average"
    first = ours.first_arrays()
    samples = lambda: ours.samples(to_record(list(first), list(first.values())))
    x, y = samples()
    assert (x.max(), y.tolist()) == (0, [0, 1, 2, 3])
    first["sums"][1], first["shares"][:] = 3.0, [-0.1, 0.001, 0.0, 0.2]
    x, y = samples()
    assert (x.max(), y.tolist()) == (1, [1, 3])
    first["shares"][:] = -1
    refused(samples, "no class has a positive share")

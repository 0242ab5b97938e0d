"""Local random draws depend on the seed, the purpose, the client and the round."""

from fedapps.clients import FedAvgClient
from fedapps.testing.problems import blobs, small_net

CONFIG = {"seed": 3, "server-round": 2}


def test_draws_differ_in_seed_purpose_client_and_round():
    one, other = (FedAvgClient(small_net, blobs(0), i) for i in (0, 1))
    assert one.draw("batches", CONFIG) == (3, "batches", 0, 2)
    assert one.draw("dropout", CONFIG) == (3, "dropout", 0, 2)
    assert other.draw("batches", CONFIG) == (3, "batches", 1, 2)
    assert one.draw("batches", {**CONFIG, "seed": 4}) == (4, "batches", 0, 2)
    assert one.draw("batches", {**CONFIG, "server-round": 5}) == (3, "batches", 0, 5)

"""The methods that generate images, as `fedapps` builds them: the net of each side, and
that their default jobs learn.
"""

import pytest
from flwr.app import RecordDict

from fedapps.clients.base.store import MessageStore
from fedapps.models.generative_nets import build_energy_net
from fedapps.runs.assembly import build_client, build_task
from fedapps.settings.reading import read_settings
from tests.helpers import run_inline


def test_each_site_has_the_next_of_the_named_nets():
    settings = read_settings(
        {
            "method": "fedevg",
            "num-clients": 5,
            "data.partition": "iid",
            "fedevg.net": "energy-cnn, energy-mlp,energy-patches",
        }
    )
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

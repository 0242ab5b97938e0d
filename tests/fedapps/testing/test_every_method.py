"""Every method repeats, resumes and survives, on the task that it runs on by default,
and its clients read all that its strategy sends.
"""

import pytest

from clients.base import options
from fedapps.methods import METHODS
from fedapps.testing import exams

#: Of the default jobs: few samples for each client. A method takes more from ``SMALL``
#: if it fits nets for long.
JOB = {"num-clients": 40, "clients-per-round": 0}
IMAGES = {
    "num-clients": 180,
    "data.partition": "iid",
    "synthetic.samples": 10,
    "synthetic.steps": 1,
}
BOOSTED = {"ffgb.fit-steps": 2}
DISTILLED = {
    "ffgb-distill.oracle-epochs": 1,
    "ffgb-distill.distill-epochs": 1,
    "public.samples": 50,
}
SMALL = {
    "ffgb": BOOSTED,
    "ffgb-c": BOOSTED,
    "ffgb-l": BOOSTED,
    "ffgb-distill": DISTILLED,
    "warm-start": DISTILLED,
    "fedavg-distill": {"fedavg-distill.distill-epochs": 1, "public.samples": 50},
    "fedevg": {**IMAGES, "fedevg.net": "energy-mlp"},
    "feddm": {**IMAGES, "feddm.steps": 1},
    "class-means": IMAGES,
    "fedcgan": {**IMAGES, "fedcgan.hidden": 4},
    "fedcvae": {**IMAGES, "fedcvae.hidden": 4},
}


@pytest.mark.parametrize("method", METHODS)
def test_it_repeats_resumes_survives_and_reads_what_it_is_sent(method, caplog, monkeypatch):
    monkeypatch.setattr(options, "_logged", set())
    exams.every(*exams.of_run({"method": method, **JOB, **SMALL.get(method, {})}))
    assert "of the configuration that" not in caplog.text

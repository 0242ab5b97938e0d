"""Every method repeats, resumes and survives, on the task that it runs on by default,
and its clients read all that its strategy sends.
"""

import pytest

from fedapps.clients.base import options
from fedapps.methods import METHODS
from fedapps.testing import exams
from tests.small_jobs import JOB, SMALL


@pytest.mark.parametrize("method", METHODS)
def test_it_repeats_resumes_survives_and_reads_what_it_is_sent(method, caplog, monkeypatch):
    monkeypatch.setattr(options, "_logged", set())
    exams.every(*exams.of_run({"method": method, **JOB, **SMALL.get(method, {})}))
    assert "of the configuration that" not in caplog.text

"""Methods whose clients choose by validation samples have some by default, also where a
task's default job has none.
"""

import pytest

from fedapps.runs.prepare import with_defaults


@pytest.mark.parametrize("task", ["tabular", "regression"])
@pytest.mark.parametrize(
    ("method", "share"), [("superfed-mm", 0.2), ("finetune", 0.2), ("fedavg", 0.0), ("apfl", 0.0)]
)
def test_clients_that_choose_have_validation_samples(method, share, task):
    given = {"method": method, "task": task}
    assert with_defaults(given).data.validation == share
    assert with_defaults({**given, "data.validation": 0.1}).data.validation == 0.1

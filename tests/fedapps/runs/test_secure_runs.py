"""Runs with secure sums: the plain run's model, the report, and refusals in a line."""

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from safetensors.numpy import load_file

from fedapps.algorithms.secure.wire import QUERY, RECORD, packed
from fedapps.engines.inline import InlineGrid
from fedapps.engines.node_app import MANY, Part, pack, unpack
from fedapps.lab.results.run_tables import secure_section
from fedapps.records.reader import read_run
from fedapps.runs.client_app import app
from fedapps.runs.prepare import with_defaults
from tests.helpers import assert_arrays, rounds_of, run_inline

SMALL = {
    "num-clients": 4,
    "clients-per-round": 0,
    "num-rounds": 2,
    "evaluate-every": 2,
    "train.local-epochs": 1,
    "seed": 3,
}


@pytest.mark.parametrize(
    ("method", "options", "secure", "phases"),
    [
        ("fedavg", {}, {}, "3"),
        ("scaffold", {}, {}, "3"),
        ("aaggff-s", {"aaggff.base": "fedadam"}, {"secure.clear-losses": True}, "4"),
    ],
)
def test_the_model_is_that_of_the_plain_run_and_the_report_shows_the_sums(
    method, options, secure, phases, tmp_path
):
    run_inline(tmp_path / "plain", method=method, **SMALL, **options)
    secure = {"secure.on": True, **secure}
    run_inline(tmp_path / "secure", method=method, **SMALL, **options, **secure)
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("plain", "secure"))
    assert_arrays(one, other, rtol=1e-05, atol=1e-06)
    for row in rounds_of(tmp_path / "secure"):
        assert row["secure-survivors"] == row["secure-asked"] == 4
        # six bytes for four, and what else there is to say
        assert 1.45 * row["bytes-up"] < row["travelled-up"] < 1.7 * row["bytes-up"]
    section = secure_section(read_run(tmp_path / "secure"))
    assert section.rows[0][:4] == ("2 of 2", "4 to 4", "100.0 %", phases)
    assert secure_section(read_run(tmp_path / "plain")) is None
    assert "Secure sums" in (tmp_path / "secure" / "report.html").read_text()
    assert not (tmp_path / "secure" / "confusion.csv").exists()


@pytest.mark.parametrize("key", ["store-dir", "secure-key", "policy"])
def test_no_message_brings_or_takes_the_state_of_a_site(key, tmp_path):
    """As in a simulation: the server would read all secrets, or choose them."""
    grid = InlineGrid(app, 3, with_defaults({**SMALL, "secure.on": True}).flat())
    (tmp_path / "policy").write_text("")
    grid.contexts[1001].node_config[key] = str(tmp_path / key)
    question = RecordDict({RECORD: ConfigRecord(packed({"step": "hello"}))})
    facts = {"client": 1, "type": QUERY, "group": "1"}
    chosen = RecordDict({RECORD: ConfigRecord({"key": bytes(32)})})
    content = pack([Part(facts, question, chosen)], {"num-clients": 3})
    (reply,) = grid.send_and_receive([Message(content, 1001, MANY)])
    ((part,),) = unpack(reply.content)[1:]
    assert (part.state, part.content) == (None, None)
    assert "keeps the state of its clients" in part.facts["reason"]

"""`examples/notebook`: its cells run in order with few rounds and give the described
results; the committed file holds no outputs.
"""

import json

import pytest

from tests.helpers import ROOT, printed

NOTEBOOK = ROOT / "examples" / "notebook" / "your_data_your_net.ipynb"
CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
CODE = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]
#: What a kernel would show of a cell's last line, checked at the end.
CHECKS = """
import numpy as np
assert set(runs) == {"fedavg", "fedper", "local"}
assert {run.summary["status"] for run in runs.values()} == {"completed"}
assert list(dealt.table["client"]) == ["bern", "graz", "lyon", "oslo", "turin"]
assert list(comparison.table["label"]) == ["fedavg", "fedper", "local"]
assert len(comparison.gains) == 10
assert "hospital" not in dealt._repr_html_()
for thing in (dealt, runs["fedavg"], comparison, comparison.plot()):
    assert len(thing._repr_html_()) > 200
rows = [row for row in csv.DictReader(open("visits.csv"))]
bern = np.array([[float(row[name]) for name in ("age", "pressure", "glucose", "marker")] for row in rows], np.float32)
assert abs(scale.of(bern[:, None, None]).mean((0, 1, 2))).max() < 0.1, "the scale is that of all training samples"
from safetensors.torch import load_file
sent = load_file(runs["fedper"].folder / "model.safetensors")
for name, tensor in net.state_dict().items():
    assert torch.equal(tensor, again.state_dict()[name])
    same = torch.equal(tensor, sent[name])
    assert same == (not name.startswith("last.")), "the body is everybody's, the head Bern's own"
"""


def test_what_is_committed_holds_no_outputs():
    for cell in CELLS:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None


@pytest.mark.slow
def test_its_cells_run_in_order(tmp_path):
    """In a separate process and folder, as a kernel runs them; with two rounds."""
    script = "\n".join(CODE).replace('"num_rounds": 10', '"num_rounds": 2')
    assert '"num_rounds": 2' in script
    (tmp_path / "cells.py").write_text(script + CHECKS)
    assert "tensor([[0." in printed("cells.py", cwd=tmp_path)

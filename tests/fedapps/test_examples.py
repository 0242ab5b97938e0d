"""The recipes in ``examples/recipes`` run as they are, and learn."""

import importlib.util
import json
import re

import numpy as np
import pytest

from benchmarks import own_apps
from fedapps.engines.inline import InlineGrid
from fedapps.strategies.base.flower_private import identify_process
from tests.helpers import ROOT, printed

FOLDER = ROOT / "examples" / "recipes"
LEARNT = {
    "fedfw": lambda x: abs(x[3] - 1) < 0.1 and abs(x[7] + 1) < 0.1,
    "fedboost": lambda alpha: alpha[1] < 0.05 and abs(alpha[0] - alpha[2]) < 0.1,
    "ffgb": lambda accuracy: accuracy > 0.9,
    "fedevg": lambda accuracy: accuracy > 0.9,
    "superfed": lambda accuracy: accuracy > 0.8,
    "aaggff": lambda w: w[0] > 0.3,  # FedAvg: 0.25
    "head_only": lambda accuracy: accuracy > 0.9,
}


def test_every_recipe_is_tested():
    assert {path.stem for path in FOLDER.glob("*.py")} == set(LEARNT)


@pytest.mark.parametrize("name", LEARNT)
def test_the_recipe_learns(name):
    spec = importlib.util.spec_from_file_location(f"recipe_{name}", FOLDER / f"{name}.py")
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    identify_process(1)
    found = recipe.main(InlineGrid(recipe.app, 4), None)
    assert LEARNT[name](found), found
    assert np.all(np.isfinite(found))


# --- the notebook ---------------------------------------------------------------------


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
        assert (cell.get("outputs", []), cell.get("execution_count")) == ([], None)


@pytest.mark.slow
def test_its_cells_run_in_order(tmp_path):
    """In a separate process and folder, as a kernel runs them; with two rounds."""
    script = "\n".join(CODE).replace('"num_rounds": 10', '"num_rounds": 2')
    assert '"num_rounds": 2' in script
    (tmp_path / "cells.py").write_text(script + CHECKS)
    assert "tensor([[0." in printed("cells.py", cwd=tmp_path)


# --- the table of lines ---------------------------------------------------------------


own_apps.quiet()


@pytest.mark.parametrize("method", ["FedProx", "SCAFFOLD", "AAggFF-S", "Ditto"])
def test_the_page_counts_the_lines_that_change(method):
    page = (ROOT / "docs" / "strategy-in-your-project.md").read_text(encoding="utf-8")
    table = page.partition("## What the methods bring")[2]
    row = re.findall(rf"^\| {method} \|(.*)\|$", table, re.M)[0]
    counted = [int(cell.rpartition(",")[2]) for cell in row.split("|")[:2]]
    assert counted == [own_apps.changed(own_apps.APPS[name], method) for name in ("torch", "NumPy")]

"""What a client process imports: a SuperNode starts one for every message, so nothing that takes long and is not needed."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LATE = {
    "scipy",
    "sklearn",
    "pandas",
    "matplotlib",
    "datasets",
    "flwr_datasets",
    "PIL",
    "quadprog",
    "torchvision",
    "transformers",
    "ray",
}
IMPORT = """
import sys
from fedapps.client_app import app
print(*sorted({name.partition('.')[0] for name in sys.modules}))
"""


def test_the_client_app_imports_nothing_that_it_can_do_without():
    done = subprocess.run([sys.executable, "-c", IMPORT], cwd=ROOT, capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    assert "torch" in imported
    assert LATE & imported == set()

"""Make the folder that `flwr app publish` uploads to Flower Hub: the app, what
`pip install .` there needs, and the README, which the Hub shows.

    python -m tools.hub_app DIR

A release writes the repository's address into the README first (`tools/address.py`).
"""

import shutil
import sys
from pathlib import Path

from fedapps.engines.app_folder import copy_app

ROOT = Path(__file__).resolve().parents[1]


def make(folder: Path) -> Path:
    """Make the app's folder anew inside ``folder``; return it."""
    shutil.rmtree(folder / "fedapps", ignore_errors=True)
    app = copy_app(folder)
    for name in ("README.md", "experiments/default.toml"):
        (app / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, app / name)
    return app


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tools.hub_app DIR")
    made, flwr = make(Path(sys.argv[1])), Path(sys.executable).with_name("flwr")
    print(f"The app is in {made}. To publish it on Flower Hub:")
    print(f"  {flwr} login supergrid\n  {flwr} app publish {made}")

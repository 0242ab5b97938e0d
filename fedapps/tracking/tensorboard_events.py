"""TensorBoard: an events file in the run's folder. ``tensorboard --logdir DIR/cells``
shows the runs of a sweep side by side.
"""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedapps.tracking.callback import Table, Tracked, columns_of

FOLDER = "tensorboard"


class TensorBoardEvents:
    """Measures as scalars, the clients' values as histograms and a table, settings as
    text, plots as images.
    """

    def __init__(self, run: Tracked) -> None:
        folder = run.folder if not run.to else Path(run.to) / run.sweep / run.name
        kind = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        # A resumed run repeats the rounds after the checkpoint; purge their first
        # records.
        self.writer = kind(str(folder / FOLDER), purge_step=run.done + 1 if run.done else None)
        rows = [
            ("setting", "value"),
            *((key, str(value) or "``") for key, value in run.config.items()),
        ]
        self.writer.add_text("settings", markdown(rows), run.done)

    def round(self, number: int, measures: Mapping[str, float], clients: Table) -> None:
        """Record a round."""
        for name, value in measures.items():
            self.writer.add_scalar(name, value, number)
        if clients:
            for name, values in columns_of(clients).items():
                known = [
                    value
                    for value in values
                    if isinstance(value, int | float) and np.isfinite(value)
                ]
                if name != "client" and known:
                    self.writer.add_histogram(f"clients/{name}", np.asarray(known), number)
            self.writer.add_text("clients", markdown(clients), number)
        self.writer.flush()

    def end(self, status: str, files: Sequence[Path], plots: Sequence[Path]) -> None:
        """Record the end of the run."""
        from PIL import Image

        self.writer.add_text("status", status)
        for path in plots:
            with Image.open(path) as picture:
                self.writer.add_image(
                    f"plots/{path.stem}", np.asarray(picture.convert("RGB")), dataformats="HWC"
                )
        self.writer.close()


def markdown(rows: Table) -> str:
    """Return rows as a Markdown table; the first row is its header."""
    lines = [
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows
    ]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])

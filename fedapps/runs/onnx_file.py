"""`fedapps export --format onnx`: a net with the scale of its inputs as one ONNX file,
for devices without Python.

The file takes samples as the data have them: images in [0, 1], numbers in their own
units, rows of a table as the features of its metadata, NaN where a value is missing,
each category 0 or 1. It is kept only if onnxruntime computes what the net computes.
"""

import json
import logging
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from fedapps import clients
from fedapps.data.scaling import Scale, TableScale
from fedapps.errors import UserError
from fedapps.notes import quiet
from fedapps.records.files import replace
from fedapps.tasks.targets import TargetScale

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
INPUT, OUTPUT = "input", "output"
#: The largest difference to the net's outputs, relative to the largest of these.
TOLERANCE = 1e-4


def check_packages() -> None:
    """Raise ``UserError`` if a package is missing."""
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise UserError(
            f"--format onnx: {', '.join(missing)} not installed: pip install 'fedapps[onnx]'"
        )


def write_onnx(
    client: "clients.FedAvgClient",
    tensors: dict[str, Any],
    scale: Scale | None,
    targets: TargetScale | None,
    path: Path,
    features: Sequence[str] = (),
) -> None:
    """Write the net with these arrays, for batches of any size. Raises ``UserError``.

    ``client``: its net and, to check the file, its test samples. ``targets``: scale of
    the outputs, if they are numbers. ``features``: names of a table's features.
    """
    import torch
    from torch import nn

    table = scale if isinstance(scale, TableScale) else None

    class Whole(nn.Module):
        """The net between the scales."""

        mean: torch.Tensor
        deviation: torch.Tensor
        numeric: torch.Tensor
        constant: torch.Tensor
        center: torch.Tensor
        size: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.net = client.model
            for name, value in (
                ("mean", 0.0 if scale is None else scale.mean),
                ("deviation", 1.0 if scale is None else scale.deviation),
                ("center", 0.0 if targets is None else targets.center),
                ("size", 1.0 if targets is None else targets.scale),
            ):
                self.register_buffer(name, torch.tensor(np.asarray(value, np.float32)))
            for name in ("mean", "deviation", "numeric", "constant") if table else ():
                values = torch.from_numpy(getattr(table, name))
                self.register_buffer(name, values.reshape(x.shape[1:]))

        def forward(self, x: torch.Tensor) -> Any:
            if table:  # TableScale.of
                whole = torch.where(torch.isnan(x), self.mean, x)
                x = (whole - self.mean) / self.deviation
                x = x.clamp(-table.clip, table.clip) if table.clip else x
                x = torch.where(self.numeric, x, whole)
                x = torch.where(self.constant, torch.zeros_like(x), x)
            elif scale is not None:
                x = (x - self.mean) / self.deviation
            out = self.net(x)
            return out if targets is None else self.center + self.size * out

    client.model.load_state_dict(tensors)
    x = client.data.test.x.cpu()
    whole = Whole().eval()
    raw = x if scale is None else x * whole.deviation + whole.mean
    if table:
        raw = torch.where(whole.numeric, raw, x)
        raw = torch.cat([raw, torch.full_like(raw[:1], torch.nan)])  # a row of missing values

    def write(file: Path) -> None:
        program = torch.onnx.export(
            whole,
            (raw[:2],),
            dynamo=True,
            verbose=False,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
        )
        assert program is not None
        program.model.metadata_props["features"] = json.dumps(features)
        program.save(str(file))
        check(file, whole, raw)

    try:
        with quiet(logging.ERROR, "torch.onnx", "onnxscript"):
            replace(path, write)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"--format onnx: this net cannot be exported ({' '.join(str(error).split())[:200]})"
        ) from None


def check(file: Path, net: Any, x: Any) -> None:
    """Raise ``UserError`` unless onnxruntime computes the net's outputs."""
    import onnxruntime
    import torch

    session = onnxruntime.InferenceSession(file.read_bytes(), providers=["CPUExecutionProvider"])
    for batch in (x[:1], x):
        with torch.no_grad():
            want = net(batch).numpy()
        found = session.run([OUTPUT], {INPUT: batch.numpy()})[0]
        apart = float(np.abs(found - want).max() / max(float(np.abs(want).max()), 1e-12))
        if found.shape != want.shape or not apart <= TOLERANCE:
            raise UserError(
                f"--format onnx: onnxruntime computes other outputs than the net (difference "
                f"{apart:.2g}, limit {TOLERANCE:g}): nothing is written"
            )

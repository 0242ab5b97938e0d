"""Runs, sweeps and comparisons as Python objects, with their numbers as DataFrames,
their plots and their models.

A notebook shows each as a short table, ``print`` as text, whole where there is no
terminal.
"""

import base64
import html as markup
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from fedapps.algorithms.common.options import nearest
from fedapps.data.scaling import Scale
from fedapps.errors import UserError, in_python
from fedapps.lab.charts import html
from fedapps.lab.charts.drawing import Figure, svg
from fedapps.lab.charts.files import FORMATS, file
from fedapps.lab.charts.html import Html
from fedapps.lab.client_samples import MAX_CLIENTS, ClientSamples, figure
from fedapps.lab.results.compare import Compared, compared
from fedapps.lab.results.gains import records
from fedapps.lab.results.parts import run_figures
from fedapps.lab.results.report import state_sentence
from fedapps.lab.results.sections import Section
from fedapps.lab.sweeps.page import figures, tables_html
from fedapps.lab.sweeps.tables import Results, markdown_table
from fedapps.records.reader import RunFolder, read_run
from fedapps.runs.assembly import build_task
from fedapps.runs.models import (
    check_usable,
    exported,
    identified,
    net_arrays,
    scale_of,
    settings_in,
    whole,
)
from fedapps.settings.settings import Settings
from fedapps.tasks.capabilities import with_net_of
from fedapps.toml_text import flatten_toml, read_toml

if TYPE_CHECKING:
    from torch import nn


class Plot:
    """A figure in the light or the dark scheme. A notebook shows it, ``save`` writes it
    to a file.
    """

    def __init__(self, name: str, figure: Figure, dark: bool = False) -> None:
        self.name, self._figure, self._dark = name, figure, dark

    def __repr__(self) -> str:
        return f"<fedapps.Plot {self.name}: a notebook shows it, .save(FILE) writes it>"

    def _repr_svg_(self) -> str:
        return svg(self._figure, self._dark).decode()

    def save(self, path: str | Path) -> Path:
        """Write the figure as PDF, PNG or SVG, by the ending of ``path``; return the
        path. Raises ``UserError`` for another ending.
        """
        path = Path(path)
        form = path.suffix.removeprefix(".")
        if form not in FORMATS:
            raise UserError(f"{path}: a plot is written as .pdf, .png or .svg, choose one of them")
        path.write_bytes(file(self._figure, form, self._dark))
        return path


class Plots(Mapping[str, Plot]):
    """Figures by name. A notebook shows all of them, ``plots["clients"]`` is one of
    them, ``save`` writes them into a folder.
    """

    def __init__(self, figures: Mapping[str, Figure], dark: bool = False) -> None:
        self._plots = {name: Plot(name, figure, dark) for name, figure in figures.items()}

    def __repr__(self) -> str:
        return (
            f"<fedapps.Plots {', '.join(self) or 'none'}: a notebook shows them, .save(FOLDER) "
            "writes them>"
        )

    def __getitem__(self, name: str) -> Plot:
        if name not in self._plots:
            raise KeyError(
                f"{name!r}: {nearest(name, self._plots)}the plots are "
                f"{', '.join(self._plots) or 'none'}"
            )
        return self._plots[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._plots)

    def __len__(self) -> int:
        return len(self._plots)

    def save(self, folder: str | Path) -> list[Path]:
        """Write every figure as NAME.png into a folder, which is created if necessary,
        and return the paths.
        """
        Path(folder).mkdir(parents=True, exist_ok=True)
        return [plot.save(Path(folder) / f"{name}.png") for name, plot in self._plots.items()]

    def _repr_html_(self) -> str:
        return Html(
            '<div style="display: flex; flex-wrap: wrap; gap: '
            f'.5em">{"".join(map(_image, self._plots.values()))}</div>'
        )


def _image(plot: Plot) -> str:
    data = base64.b64encode(plot._repr_svg_().encode()).decode()
    return (
        f'<img alt="{markup.escape(plot.name)}" style="max-width: 100%" '
        f'src="data:image/svg+xml;base64,{data}">'
    )


class Verdict:
    """The verdict of a contest. ``folder``: with verdict.html and winner.toml.
    ``kind``: "use", "alone" or "either"; ``method``: the recommended one. ``text``: one
    paragraph.
    """

    def __init__(
        self,
        folder: Path,
        kind: str,
        method: str,
        text: str,
        sections: Sequence[Section],
        figure: Figure,
    ) -> None:
        self.folder, self.kind, self.method, self.text = folder, kind, method, text
        self._sections, self.plots = sections, Plots({"gains": figure})

    def __repr__(self) -> str:
        return f"<fedapps.Verdict {self.kind}, {self.method}: {self.folder}>"

    def __str__(self) -> str:
        return self.text

    @property
    def table(self) -> Any:
        """One row per finalist: score and gain on the test samples, intervals, costs,
        as text (a DataFrame).
        """
        final = self._sections[0]
        return frame([dict(zip(final.header, row, strict=True)) for row in final.rows])

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the verdict's method: ``fedapps.run(**verdict.settings)``."""
        return read_toml(self.folder / "winner.toml")

    def _repr_html_(self) -> str:
        shown = [html.paragraph(self.text), self.plots._repr_html_(), self._sections[0].as_html()]
        return "\n".join([*shown, _place(self.folder / "verdict.html")])


class Run:
    """The results of a run, read from its folder. ``trust``: whether models may execute
    code that its settings name.
    """

    def __init__(self, folder: Path, trust: bool = False) -> None:
        self.folder, self.trust = folder.absolute(), trust

    def __repr__(self) -> str:
        return (
            f"<fedapps.Run {self.read.method} on {self.read.task}, "
            f"{self.summary.get('status', 'unfinished')}: {self.folder}>"
        )

    def __str__(self) -> str:
        return "\n".join([repr(self), *(_printed(one.table) for one in self._compared())])

    def _repr_html_(self) -> str:
        summary = html.paragraph(
            f"{self.read.method} on {self.read.subject}. {state_sentence(self.read)}"
        )
        tables = [one.html() for one in self._compared()]
        return "\n".join([summary, *tables, _place(self.folder)])

    def _compared(self) -> list[Compared]:
        """Return the run as a comparison; [] if nothing was evaluated yet."""
        try:
            return [compared([self.folder])]
        except UserError:
            return []

    def plot(self, *, dark: bool = False) -> Plots:
        """Return the plots of the report, by name."""
        return Plots(run_figures(self.read), dark)

    @cached_property
    def read(self) -> RunFolder:
        """The content of the folder, read on first use."""
        return read_run(self.folder)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings, by their flat keys."""
        return dict(self.read.settings)

    @property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json: status, rounds, mean and spread of every
        metric.
        """
        return dict(self.read.summary)

    @property
    def rounds(self) -> Any:
        """One row per round, nested values with dotted names: a DataFrame if pandas is
        installed, else a list of dictionaries.
        """
        return frame([flatten_toml(row) for row in self.read.rounds])

    @property
    def clients(self) -> Any:
        """One row per client of the last evaluation: a DataFrame if pandas is
        installed, else a list of dictionaries.
        """
        return frame(self.read.clients)

    @in_python
    def model(self) -> "nn.Module":
        """Return the global model in evaluation mode. Raises ``UserError`` if the run
        trained something other than the task's net, or if the method has no global
        model to use.
        """
        settings = settings_in(self.folder, own=True, trust=self.trust)
        task: Any = build_task(settings)
        check_usable(settings, task, "use personal_model(client)")
        return _loaded(task, net_arrays(settings, task, self.read).to_torch_state_dict())

    @in_python
    def personal_model(self, client: int | str) -> "nn.Module":
        """Return the model that a client was scored with, in evaluation mode. Raises
        ``UserError`` if it was not saved. ``client``: name or number.
        """
        its, _, tensors = exported(self.folder, client, self.trust)
        task = build_task(settings_in(self.folder, trust=self.trust))
        return _loaded(with_net_of(task, its.client_id), tensors)

    @in_python
    def scale(self, client: int | str | None = None) -> Scale | None:
        """Return the scale of a model's inputs, applied by ``scale.of(x)``; ``None`` if
        samples are not scaled.

        ``client``: needed with ``data.standardise=client``, where each client has its
        own scale.
        """
        settings = settings_in(self.folder, own=True, trust=self.trust)
        task = build_task(settings)
        number = None if client is None else identified(task, settings.num_clients, client)[0]
        return scale_of(settings, task, number)


class Sweep:
    """The finished runs of a sweep, and their table."""

    def __init__(self, folder: Path, results: Results) -> None:
        self.folder, self._results = folder, results

    def __repr__(self) -> str:
        plan = self._results.plan
        return (
            f"<fedapps.Sweep {plan.title}, {len(self._results.runs)} of {len(plan.points)} "
            f"runs: {self.folder}>"
        )

    def __str__(self) -> str:
        return f"{self!r}\n{self._results.markdown()}"

    @property
    def table(self) -> Any:
        """One row per entry of the table: its labels, the number of seeds, and the mean
        and deviation of each measure over the seeds (a DataFrame).
        """
        return frame(self._results.records())

    @property
    def runs(self) -> dict[str, Run]:
        """The finished runs, by name."""
        return {name: Run(run.path, trust=True) for name, run in self._results.runs_by_name.items()}

    def plot(self, *, dark: bool = False) -> Plots:
        """Return the plots of the report, by name."""
        return Plots(figures(self._results), dark)

    def _repr_html_(self) -> str:
        parts: list[str] = []
        for name, table in tables_html(self._results):
            parts += [html.paragraph(Html(f"<b>{html.text(name)}</b>"))] * bool(name) + [table]
        return "\n".join([*parts, html.paragraph(self._results.note()), _place(self.folder)])


class Comparison:
    """A comparison of runs."""

    def __init__(self, compared: Compared, folder: Path | None) -> None:
        self._compared, self.folder = compared, folder

    def __repr__(self) -> str:
        labels = ", ".join(row.label for row in self._compared.rows)
        return f"<fedapps.Comparison of {labels}{f': {self.folder}' if self.folder else ''}>"

    def __str__(self) -> str:
        below = [section.terminal() for section in self._compared.sections]
        return f"{self!r}\n{_printed(self._compared.table, *below)}"

    @property
    def table(self) -> Any:
        """One row per setting: means and deviations over its seeds, gains and their
        bounds (a DataFrame).
        """
        return frame(self._compared.records())

    @property
    def gains(self) -> Any:
        """One row per client and run: its accuracy (or AUROC), its accuracy in the
        reference run, and the difference (a DataFrame).
        """
        return frame(records(self._compared.gains))

    def plot(self, *, dark: bool = False) -> Plots:
        """Return the plots of the page, by name."""
        return Plots(self._compared.figures(), dark)

    def _repr_html_(self) -> str:
        below = [section.as_html() for section in self._compared.sections]
        return "\n".join(
            [self._compared.html(), *below, *([_place(self.folder)] if self.folder else [])]
        )


class Partition:
    """The partition of the data: samples of each client, by class."""

    def __init__(self, samples: ClientSamples, settings: Settings, notes: list[str]) -> None:
        self._samples, self.notes = samples, notes
        self._source = settings.data.source

    def __repr__(self) -> str:
        return (
            f"<fedapps.Partition of {self._source}: {len(self._samples.names)} clients, "
            f"{len(self._samples.classes)} classes>"
        )

    def __str__(self) -> str:
        rows = self._rows()
        table = markdown_table(list(rows[0]), [[*map(str, row.values())] for row in rows])
        return "\n".join([repr(self), table, *self.notes])

    @property
    def table(self) -> Any:
        """One row per client: numbers of training, validation and test samples, and of
        training samples by class (a DataFrame).
        """
        return frame(self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        samples = self._samples
        keys = ["client", "train", "validation", "test", *(f"class {k}" for k in samples.classes)]
        table = np.concatenate([samples.sizes, samples.trained], axis=1).tolist()
        return [
            dict(zip(keys, (name, *counts), strict=True))
            for name, counts in zip(samples.names, table, strict=True)
        ]

    def plot(self) -> Plot:
        """Return a picture of the classes of each client."""
        return Plot("partition", figure(self._samples, self._source))

    def _repr_html_(self) -> str:
        rows = self._rows()
        shown = [
            [value or "\N{MIDDLE DOT}" for value in row.values()] for row in rows[:MAX_CLIENTS]
        ]
        more = (
            [f"{MAX_CLIENTS} of {len(rows)} clients are shown"] if len(rows) > MAX_CLIENTS else []
        )
        return "\n".join(
            [html.table(list(rows[0]), shown), *map(html.paragraph, [*more, *self.notes])]
        )


def _place(folder: Path) -> Html:
    report = folder / "report.html"
    return html.paragraph(
        Html(f"<small>{html.text(report if report.exists() else folder)}</small>")
    )


def _printed(*parts: Any) -> str:
    """Return tables as text without colours, as wide as they are unless there is a
    terminal.
    """
    width = None if sys.stdout.isatty() else 10_000
    file = io.StringIO()
    console = Console(
        file=file, width=width, color_system=None, force_terminal=False, force_jupyter=False
    )
    for part in parts:
        console.print(part)
    return "\n".join(line.rstrip() for line in file.getvalue().rstrip().split("\n"))


def frame(rows: list[dict[str, Any]]) -> Any:
    """Return rows as a DataFrame if pandas is installed, else unchanged."""
    try:
        import pandas
    except ImportError:
        return rows
    return pandas.DataFrame(rows)


def _loaded(task: Any, tensors: Mapping[str, Any]) -> "nn.Module":
    net: nn.Module = task.model_fn(0)
    net.load_state_dict(whole(task, tensors))
    return net.eval()

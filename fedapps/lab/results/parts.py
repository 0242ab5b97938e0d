"""The list of all plots and small tables of a run and of a comparison, and the page
that each belongs to.

The report, the comparison, the terminal at the end of a run, `fedapps figures` and
notebooks all use ``PLOTS`` and ``TABLES``. What does not apply to the given runs is
left out. The plots of a sweep (``fedapps.lab.sweeps.page``) have the same form.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedapps.errors import UserError
from fedapps.formats import metric_name, sentence
from fedapps.lab.charts.charts import chart
from fedapps.lab.charts.drawing import Figure
from fedapps.lab.charts.files import file
from fedapps.lab.charts.html import Html
from fedapps.lab.charts.theme import THEME, Theme
from fedapps.lab.results.class_tables import classes_section, confusion_figure
from fedapps.lab.results.comparison_table import Row, rows_of
from fedapps.lab.results.fair_plots import client_bars, own_bars, weights_figure
from fedapps.lab.results.gains import Gains, gains_section
from fedapps.lab.results.grid_plots import Runs
from fedapps.lab.results.run_plots import (
    comparison_figure,
    cost_figures,
    curve_figures,
    loss_figure,
    measure_figure,
    other_measures,
)
from fedapps.lab.results.run_tables import (
    gaps_section,
    groups_section,
    newcomers_section,
    secure_section,
    worst_section,
)
from fedapps.lab.results.sections import Section
from fedapps.records.files import replace
from fedapps.records.reader import RunFolder
from fedapps.records.uncertainty import SHARE

RUN, REPORT, COMPARISON = "run", "report", "comparison"


@dataclass(frozen=True)
class Shown:
    """The settings with their runs that a page shows; the page of a run has one setting
    with one run.

    ``share``: the share of the clients that counts as the worst. ``gains``: measure,
    reference and the clients' gains over it, if there is a reference.
    """

    rows: Sequence[Row]
    share: float = SHARE
    gains: tuple[str, Row, Sequence[Gains]] | None = None

    @property
    def run(self) -> RunFolder:
        """The first run."""
        return self.rows[0].runs[0]

    @property
    def groups(self) -> dict[str, Runs]:
        """The runs by the label of their setting."""
        return {row.label: row.runs for row in self.rows if row.runs}


@dataclass(frozen=True)
class PagePlot:
    """A plot. ``name``: the file's name, "" if ``draw`` names its figures.
    ``title``: a description, with {} for the figure's name.

    ``draw`` gets the run, the groups of runs of a comparison, or the results of a
    sweep. It returns ``None`` or {} if it does not apply.
    """

    name: str
    title: str
    draw: Callable[[Any, Theme], Figure | Mapping[str, Figure] | None]

    def figures(self, shown: Any, theme: Theme = THEME) -> Mapping[str, Figure]:
        """Return the figures by name."""
        drawn = self.draw(shown, theme)
        return {self.name: drawn} if isinstance(drawn, Figure) else drawn or {}


def _side_by_side(groups: Mapping[str, Runs], theme: Theme) -> Figure | None:
    figure = client_bars(groups, theme)
    return figure if figure and len(figure.panels) > 1 else None


def _worst(shown: Shown) -> Section | None:
    return worst_section(shown.rows, shown.share)


#: The plots of each page, in their order.
PLOTS: Mapping[str, Sequence[PagePlot]] = {
    RUN: (
        PagePlot("", "{} over rounds: mean, worst and best tenth of the clients", measure_figure),
        PagePlot("", "Score over {}", cost_figures),
        PagePlot("train-loss", "Training loss over rounds", loss_figure),
        PagePlot("clients", "Score of each client, sorted", own_bars),
        PagePlot("confusion", "Confusion matrix: actual and predicted classes", confusion_figure),
        PagePlot("weights", "Weight of each client over rounds, as a heat map", weights_figure),
        PagePlot("", "Plot {}", curve_figures),
        PagePlot("measures", "Other measures over rounds", other_measures),
    ),
    COMPARISON: (
        PagePlot(
            "comparison",
            "Accuracy over rounds, and the clients sorted by accuracy",
            comparison_figure,
        ),
        PagePlot(
            "clients",
            "Each client, from worst to best, with one method beside the other",
            _side_by_side,
        ),
    ),
}
#: The small tables below the main one of each page, in their order.
TABLES: Mapping[str, Sequence[Callable[[Shown], Section | None]]] = {
    RUN: (
        _worst,
        lambda shown: newcomers_section(shown.run),
        lambda shown: groups_section(shown.run),
    ),
    REPORT: (
        lambda shown: classes_section(shown.run),
        lambda shown: secure_section(shown.run),
    ),
    COMPARISON: (
        _worst,
        lambda shown: gains_section(*shown.gains) if shown.gains else None,
        lambda shown: gaps_section(shown.rows),
    ),
}


def sections(page: str, shown: Shown) -> list[Section]:
    """Return the small tables of a page that apply."""
    return [section for make in TABLES[page] if (section := make(shown)) is not None]


def run_sections(run: RunFolder, page: str = RUN) -> list[Section]:
    """Return the small tables of a run: of ``RUN`` those for the terminal, of
    ``REPORT`` also the longer ones.
    """
    shown = Shown(rows_of([run]))
    return sections(RUN, shown) + (sections(page, shown) if page != RUN else [])


def figures(parts: Iterable[PagePlot], shown: Any) -> dict[str, Figure]:
    """Return the plots that apply, by name."""
    return {name: one for part in parts for name, one in part.figures(shown).items()}


def run_figures(run: RunFolder) -> dict[str, Figure]:
    """Return the plots of a run, by name."""
    return figures(PLOTS[RUN], run)


def charts(parts: Iterable[PagePlot], shown: Any, theme: Theme = THEME) -> dict[str, Html]:
    """Return the plots that apply as charts of a page, by name."""
    return {
        name: chart(name, part.title.format(sentence(metric_name(name))), figure)
        for part in parts
        for name, figure in part.figures(shown, theme).items()
    }


def write_figures(folder: Path, figures: Mapping[str, Figure], form: str) -> list[Path]:
    """Write figures as files ("pdf", "png" or "svg") into a folder, which is created if
    necessary, and return the paths.

    Since clients name the curves, characters of a name that are neither letters nor
    digits become an underscore.
    """
    if folder.is_symlink():
        raise UserError(f"{folder} is a link, to {folder.resolve()}: choose that as --out")
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in figures.items():
        paths.append(folder / f"{re.sub('[^A-Za-z0-9-]', '_', name)[:100]}.{form}")
        replace(paths[-1], partial(Path.write_bytes, data=file(figure, form)))
    return paths

"""Plots as objects, which a notebook shows and others save."""

import base64
import html as markup
from collections.abc import Iterator, Mapping
from pathlib import Path

from fedapps.algorithms.common.options import nearest
from fedapps.errors import UserError
from fedapps.lab.charts.drawing import svg
from fedapps.lab.charts.files import FORMATS, file
from fedapps.lab.charts.html import Html
from fedapps.lab.charts.layout import Figure


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

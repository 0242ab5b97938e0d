"""Small tables below the main table of a run or a comparison, on the terminal and in
the report.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fedapps.lab.charts import html
from fedapps.lab.charts.html import Html
from fedapps.records.files import csv_text


@dataclass(frozen=True)
class Section:
    """A table of texts under a title. The text after a line break in a cell is shown
    smaller. ``note``: how to read the table.
    """

    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def terminal(self) -> Group:
        """Return title, table and note for a terminal. The first space in a heading
        becomes a line break, so that more columns fit.
        """
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for place, name in enumerate(self.header):
            if place:
                table.add_column(Text(name.replace(" ", "\n", 1)), justify="right", no_wrap=True)
            else:
                table.add_column(Text(name), overflow="fold")
        for row in self.rows:
            table.add_row(*map(_text, row))
        return Group("", Text(self.title, style="bold"), table, Text(self.note, style="dim"))

    def as_html(self) -> Html:
        """Return the heading, the table and the note."""
        table = html.table(self.header, [[_cell(cell) for cell in row] for row in self.rows])
        panel = Html(f'<div class="panel">{table}</div>')
        return Html(
            "\n".join([html.heading(self.title), panel, html.paragraph(self.note, "quiet")])
        )


def table_text(records: Sequence[Mapping[str, Any]]) -> str:
    """Return records, all with the same keys, as the text of a CSV file."""
    return csv_text([records[0], *(record.values() for record in records)])


def _text(cell: str) -> Text:
    first, _, second = cell.partition("\n")
    text = Text(first)  # not markup: names may come from files
    return text.append(f"\n{second}", style="dim") if second else text


def _cell(cell: str) -> Html:
    first, _, second = map(html.text, cell.partition("\n"))
    return Html(f"{first}<br><small>{second}</small>" if second else first)

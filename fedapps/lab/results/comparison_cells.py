"""The texts in the cells of a comparison's table, and the table for a terminal."""

from rich import box
from rich.table import Table
from rich.text import Text

from fedapps.formats import byte_scale, is_percent, metric_text, percent_text, three_digits
from fedapps.lab.results.comparison_table import Column, Row
from fedapps.lab.results.run_measures import measured, read_measure
from fedapps.lab.results.seeds import Measured, stands_out


def header(rows: list[Row], column: Column) -> str:
    """The header with its unit, so that the cells hold bare numbers."""
    if column.key.startswith("bytes"):
        return f"{column.header} {_scale(rows, column)[1]}"
    if column.key == "seconds":
        return f"{column.header} s"
    return (
        f"{column.header} %"
        if is_percent(column.key) and "%" not in column.header
        else column.header
    )


def _scale(rows: list[Row], column: Column) -> tuple[float, str]:
    return byte_scale(
        max((abs(row.values[column.key][0]) for row in rows if column.key in row.values), default=0)
    )


def cell_texts(rows: list[Row], row: Row, column: Column) -> tuple[str, str]:
    """The mean and, for several seeds, `±` and the standard deviation with the same
    number of decimals.
    """
    if column.key not in row.values:
        return "-", ""
    mean, std = row.values[column.key]
    if column.key == "rounds-completed":
        return f"{mean:g}", ""
    if column.key.startswith("bytes"):
        divisor = _scale(rows, column)[0]
        mean, std = mean / divisor, None if std is None else std / divisor
        shown = three_digits(mean)
    elif column.key == "seconds":
        shown = three_digits(mean)
    elif is_percent(column.key):
        shown, std = percent_text(mean, unit=False), None if std is None else 100 * std
    else:
        shown = metric_text(column.key, mean)
    decimals = len(shown.partition(".")[2]) if shown.partition(".")[2].isdigit() else 3
    return shown, "" if std is None else f"±{std:.{decimals}f}"


def winners(rows: list[Row], columns: list[Column]) -> set[tuple[str, str]]:
    """Return (label, key) of the values that are better than those of every other row,
    beyond the noise (``seeds.stands_out``).

    One or two seeds therefore have no winner. A predictor that nobody trained has the
    same value for every seed.
    """
    best: set[tuple[str, str]] = set()
    for column in (column for column in columns if column.best is not None):
        key = column.key
        rivals = [row for row in rows if row.complete and key in row.values]
        seeds = {run.seed for row in rivals for run in row.runs}
        values = {
            row.label: measured({run.seed: run for run in row.runs}, read_measure(key))
            if row.runs
            else Measured(dict.fromkeys(seeds, row.values[key][0]))
            for row in rivals
        }
        smaller = column.best is min
        best |= {(label, key) for label in values if stands_out(label, values, smaller)}
    return best


def terminal_table(rows: list[Row], columns: list[Column]) -> Table:
    """The table for a terminal. Units are in the headers and seeds on a second line, so
    that it fits in 80 columns.
    """
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    lines = [line for row in rows for line in _label(row).plain.split("\n")]
    longest = max(len(word) for line in lines for word in line.split())
    table.add_column("method", min_width=min(24, longest), overflow="fold")
    rounds = {row.values["rounds-completed"][0] for row in rows if "rounds-completed" in row.values}
    shown = [column for column in columns if column.key != "rounds-completed" or len(rounds) > 1]
    for column in shown:
        table.add_column(header(rows, column).replace(" ", "\n", 1), justify="right", no_wrap=True)
    best = winners(rows, columns)
    several = any(len(row.runs) > 1 for row in rows)
    for index, row in enumerate(rows):
        cells = []
        for column in shown:
            mean, std = cell_texts(rows, row, column)
            # Text, not markup: names may come from files.
            cell = Text(mean, style="bold" if (row.label, column.key) in best else "")
            cells.append(cell.append(f"\n{std}", style="not bold dim") if std else cell)
        table.add_row(_label(row), *cells)
        if several and index < len(rows) - 1:
            table.add_row()
    return table


def _label(row: Row) -> Text:
    label = Text(row.label, style="" if row.complete else "yellow")
    return (
        label.append(f"\n{row.remark}", style="dim" if row.complete else "yellow")
        if row.remark
        else label
    )

"""Csv files as people write them, also compressed: by blocks, with the type of a column
decided by all of its cells. Raises ``ValueError`` with one line that shows no cell.
"""

import csv
import io
import re
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from fedapps.data.frame import Frame, check_names
from fedapps.data.written_numbers import has_decimal_commas, is_number, may_have_thousands

#: What stands for no value, as pandas reads it.
MISSING = (
    *("", "NA", "N/A", "n/a", "NaN", "nan", "-NaN", "-nan", "NULL", "null", "None", "<NA>"),
    *("#N/A", "#NA", "#N/A N/A", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
)
#: The most bytes of a line. A table of ``WIDE`` columns or more is read in blocks of
#: this size, so that a block holds many of its rows.
BLOCK, WIDE = 1 << 24, 500
#: Bytes of a block of other tables: Arrow holds a multiple of it beside the columns.
SMALL = 1 << 22
NO_UTF8 = "it is no UTF-8: save it as that"
NAMELESS = "its first line holds values: write the names of the columns there, and nowhere else"


def _header(path: Path) -> tuple[list[str], str, str, int]:
    """Return the names of the columns of a file, its delimiter, its encoding, and the
    number of lines before the names.
    """
    with pa.input_stream(str(path)) as file:
        head = file.read(SMALL)
        head += b"" if b"\n" in head[SMALL // 2 :] else file.read(BLOCK)
    encoding = "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    text = head.decode("utf-8-sig" if encoding == "utf-8" else encoding, "replace")
    given = re.match(r"\s*sep=(.)\r?\n", text)  # a line that Excel understands
    body = text[given.end() :] if given else text.lstrip("\r\n")
    header = re.split("[\r\n]", body, maxsplit=1)[0]
    for broken, why in (
        (not body, "it has no rows"),
        (
            "\0" in body,
            "it holds NUL characters, as UTF-16 without its mark does: save it as UTF-8",
        ),
        ("\ufffd" in header, NO_UTF8),
    ):
        if broken:
            raise ValueError(why)
    delimiter = given[1] if given else max(",;\t|", key=re.sub('"[^"]*"', "", header).count)
    names = [name.strip() for name in next(csv.reader(io.StringIO(body, ""), delimiter=delimiter))]
    counted = [[str(place + first) for place in range(len(names))] for first in (0, 1)]
    doubled = any(names.count(name) > 1 for name in filter(is_number, names))
    if doubled or (all(map(is_number, names)) and names not in counted):
        raise ValueError(NAMELESS)
    names = [name or f"Unnamed: {place}" for place, name in enumerate(names)]  # as pandas does
    check_names(names)
    before = text[: len(text) - len(body)]
    return names, delimiter, encoding, len(re.findall(r"\r\n?|\n", before))


def read_csv(path: Path, block: int = SMALL) -> Frame:
    """Return the columns of a file: whole numbers, floats, or text. ``block``: the
    bytes that are read at a time; a line with more is read by larger blocks.
    """
    names, delimiter, encoding, skipped = _header(path)
    try:
        # threads of Arrow abort the process if it ends soon after; rows are numbered
        # only without them
        table = arrow_csv.read_csv(
            str(path),
            arrow_csv.ReadOptions(
                use_threads=False,
                column_names=names,
                skip_rows=skipped,
                skip_rows_after_names=1,
                encoding=encoding,
                block_size=block if len(names) < WIDE else BLOCK,
            ),
            arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                null_values=MISSING,
                strings_can_be_null=True,
            ),
        )
    except pa.ArrowInvalid as error:
        if odd := re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", str(error)):
            row, columns, cells = odd.groups()
            raise ValueError(
                f"row {row} has {cells} cells, and there are {columns} columns: give every row as "
                "many, and remove lines that are not of the table"
            ) from None
        if "straddl" in str(error):
            if block < BLOCK:
                return read_csv(path, BLOCK)
            raise ValueError("a quotation mark is not closed, or no line ends") from None
        raise ValueError(NO_UTF8) from None
    named = [name for name in names if not is_number(name)]
    if named and all(name in table[name][:100].to_pylist() for name in named):
        raise ValueError(NAMELESS)
    table, account = _without_blanks(table)
    names, texts = table.column_names, table.columns
    del table
    return _typed(names, texts, account, delimiter == ";")


def _without_blanks(table: pa.Table) -> tuple[pa.Table, list[str]]:
    """Return a table without the columns and rows that hold nothing but separators."""
    said = []
    unnamed = [n for n in table.column_names if n.startswith("Unnamed: ")]
    table = table.drop_columns([n for n in unnamed if table[n].null_count == len(table)])
    if len(table) and all(column.null_count for column in table.columns):
        blank = reduce(pc.and_, (column.is_null() for column in table.columns))
        if count := pc.sum(blank).as_py():
            table, said = table.filter(pc.invert(blank)), [f"{count} rows without a value"]
    return table, said


def _typed(
    names: list[str], texts: list[pa.ChunkedArray], account: list[str], semicolons: bool
) -> Frame:
    """Return the columns with numbers as such. A point may be one of thousands in files
    of semicolons or decimal commas: such columns stay text, to be decided later.
    """
    columns: dict[str, pa.ChunkedArray] = {}
    points = {}
    for name in names:
        text = texts.pop(0)  # freed: memory holds either the text or the numbers
        pa.default_memory_pool().release_unused()
        columns[name] = number = _numbers(text)
        if number.type == pa.float64() and may_have_thousands(text[:1000].to_pylist()):
            points[name] = text
    pointed = any(columns[n].type == pa.float64() and n not in points for n in names)
    commas = any(
        has_decimal_commas(column.unique().drop_null().to_pylist(), semicolons and not pointed)
        for column in columns.values()
        if column.type == pa.string()
    )
    return Frame(
        columns | points if commas or semicolons else columns, commas=commas, account=tuple(account)
    )


def _numbers(text: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of numbers, or of no value, as such; any other as it is."""
    if text.null_count == len(text):
        return pa.chunked_array([pa.nulls(len(text))])
    for bare in (lambda cells: cells, pc.utf8_trim_whitespace):  # few columns need the second
        cells = bare(text)
        for kind in (pa.int64(), pa.float64()):
            try:
                return cells.cast(kind)
            except pa.ArrowInvalid:
                pass
    return text

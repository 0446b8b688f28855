"""Tables for people, by rich: columns that fit the terminal, or one record below the other where none fit."""

from collections.abc import Sequence
from typing import NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.cli.cells import fit, fitted, natural_width, plain, visible

LEAST_TEXT = 10
LEAST_ARRAY = 18
"""Columns narrower than this say nothing: the records go below each other instead."""
_GAP = 2


class Column(NamedTuple):
    name: str
    is_number: bool = False
    """To the right, and never shortened."""
    is_whole: bool = False
    """Never shortened: half of a time is no time."""


Row = Sequence[object]
"""Values as JSON has them; text of rich's own passes as it is."""


def print_table(
    console: Console, columns: Sequence[Column], rows: Sequence[Row], *, full: bool = False
) -> None:
    """Columns as wide as the console allows, values shortened to them; `full` shortens nothing."""
    natural = [
        max([cell_len(visible(column.name)), *(_width(row[index], full=full) for row in rows)])
        for index, column in enumerate(columns)
    ]
    available = console.width - _GAP * (len(columns) - 1)
    least = [
        width if full or column.is_number or column.is_whole else _least(rows, index)
        for index, (column, width) in enumerate(zip(columns, natural, strict=True))
    ]
    widths = fit(natural, least, available)
    if widths is not None:
        _print_columns(console, columns, rows, widths)
    else:
        _print_records(console, columns, rows, full=full)


def _least(rows: Sequence[Row], index: int) -> int:
    return LEAST_ARRAY if any(isinstance(row[index], list) for row in rows) else LEAST_TEXT


def _print_columns(
    console: Console, columns: Sequence[Column], rows: Sequence[Row], widths: Sequence[int]
) -> None:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column, width in zip(columns, widths, strict=True):
        justify = "right" if column.is_number else "left"
        header = Text(fitted(column.name, width), style="bold", justify=justify)  # type: ignore[arg-type]
        table.add_column(header, justify=justify, width=width, no_wrap=True)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(_cell(value, width) for value, width in zip(row, widths, strict=True)))
    console.print(table)


def _print_records(console: Console, columns: Sequence[Column], rows: Sequence[Row], *, full: bool) -> None:
    name_width = min(max(cell_len(column.name) for column in columns), console.width // 3)
    for number, row in enumerate(rows, 1):
        title = f"── {number} "
        console.print(Text(title + "─" * max(min(console.width, 60) - len(title), 0), style="dim"))
        for column, value in zip(columns, row, strict=True):
            name = Text(fitted(column.name, name_width).ljust(name_width), style="bold")
            width = max(console.width - name_width - _GAP, LEAST_TEXT)
            cell = _cell(value, None if full else width)
            console.print(name + "  " + cell, soft_wrap=True)


def _width(value: object, *, full: bool) -> int:
    if isinstance(value, Text):
        return value.cell_len
    return cell_len(plain(value)) if full else natural_width(value)


def _cell(value: object, width: int | None) -> Text:
    if isinstance(value, Text):
        return value
    text = plain(value) if width is None else fitted(value, width)
    return Text(text, style="dim" if value is None else "")

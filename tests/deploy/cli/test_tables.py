from io import StringIO

import pytest
from rich.console import Console
from rich.text import Text

from headrace.cli.tables import Column, Row, print_table


def rendered(columns: list[Column], rows: list[Row], *, width: int, full: bool = False) -> list[str]:
    console = Console(file=StringIO(), width=width)
    print_table(console, columns, rows, full=full)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().splitlines()


COLUMNS = [Column("n", is_number=True), Column("text"), Column("ids")]


def test_columns_that_fit() -> None:
    assert rendered(COLUMNS, [[1, "a", [1, 2]], [20, None, []]], width=80) == [
        " n  text  ids   ",
        "────────────────",
        " 1  a     [1, 2]",
        "20  NULL  []    ",
    ]


def test_columns_are_shortened_to_the_width() -> None:
    lines = rendered(COLUMNS, [[1, "x" * 100, list(range(999))]], width=50)
    assert lines[2] == f"1  {'x' * 11}…{'x' * 11}  [0, 1, 2, … 999 items]"
    assert max(map(len, lines)) <= 50


@pytest.mark.parametrize("width", range(20, 120, 7))
def test_no_line_is_wider_than_the_console(width: int) -> None:
    row: Row = [123_456, "日本語" * 50, list(range(10_000))]
    assert max(len(line) for line in rendered(COLUMNS, [row] * 3, width=width)) <= width


def test_records_go_below_each_other_where_columns_do_not_fit() -> None:
    columns = [Column(f"column_{number}") for number in range(9)]
    lines = rendered(columns, [["v" * 200] * 9], width=60)
    assert lines[0].startswith("── 1 ──")
    assert lines[1] == f"column_0  {'v' * 25}…{'v' * 24}"
    assert len(lines) == 10


def test_full_shortens_nothing() -> None:
    lines = rendered(COLUMNS, [[1, "x" * 100, list(range(50))]], width=60, full=True)
    assert f"text  {'x' * 100}" in lines
    assert f"ids   {list(range(50))}" in lines


def test_a_whole_column_is_never_shortened() -> None:
    columns = [Column("time", is_whole=True), Column("text")]
    lines = rendered(columns, [["2026-01-01 00:00:00.000000", "x" * 100]], width=40)
    assert lines[2].startswith("2026-01-01 00:00:00.000000  ")


def test_markup_and_control_characters_stay_text() -> None:
    lines = rendered([Column("[bold]a")], [["[red]b\x1b[0m"], [Text("own", style="dim")]], width=80)
    assert lines == ["[bold]a      ", "─────────────", "[red]b\\x1b[0m", "own          "]


def test_no_rows() -> None:
    assert rendered([Column("x")], [], width=80) == ["x", "─"]

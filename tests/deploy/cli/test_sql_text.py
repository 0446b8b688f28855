import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.sql_text import has_format, is_complete, statements


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("SELECT 1", ["SELECT 1"]),
        ("SELECT 1;", ["SELECT 1"]),
        ("SELECT 1; SELECT 2 ;\n", ["SELECT 1", "SELECT 2"]),
        (
            "SELECT 'a;b', 'it''s;', 'back\\';slash'; SELECT 2",
            ["SELECT 'a;b', 'it''s;', 'back\\';slash'", "SELECT 2"],
        ),
        ('SELECT `a;b`, "c;d"; SELECT 2', ['SELECT `a;b`, "c;d"', "SELECT 2"]),
        ("SELECT 1 -- not; here\n, 2; SELECT 3", ["SELECT 1 -- not; here\n, 2", "SELECT 3"]),
        ("SELECT 1 /* nor; here */; SELECT 2", ["SELECT 1 /* nor; here */", "SELECT 2"]),
        ("SELECT $$a;b$$, $x$c;$$d$x$; SELECT 2", ["SELECT $$a;b$$, $x$c;$$d$x$", "SELECT 2"]),
        ("-- only a comment\n;/* another */", []),
        ("#!/usr/bin/clickhouse; x\nSELECT 1", ["#!/usr/bin/clickhouse; x\nSELECT 1"]),
        (" ;; ", []),
        ("SELECT 'open;", ["SELECT 'open;"]),
    ],
)
def test_statements(text: str, wanted: list[str]) -> None:
    assert statements(text) == wanted


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("SELECT 1", False),
        ("SELECT 1;", True),
        ("SELECT 1; -- done", True),
        ("SELECT 1; SELECT 2", False),
        ("SELECT ';", False),
        ("SELECT 1 -- ;", False),
        ("/* ;", False),
        ("", False),
    ],
)
def test_a_statement_is_complete_at_its_semicolon(text: str, complete: bool) -> None:  # noqa: FBT001
    assert is_complete(text) is complete


@pytest.mark.parametrize(
    ("statement", "has"),
    [
        ("SELECT 1 FORMAT CSV", True),
        ("select 1\nformat Vertical ", True),
        ("SELECT formatDateTime(x)", False),
    ],
)
def test_format(statement: str, has: bool) -> None:  # noqa: FBT001
    assert has_format(statement) is has


@given(st.text(alphabet="ab;'\"`-/*$ \n\\#"))
def test_nothing_but_semicolons_and_comments_is_lost(text: str) -> None:
    kept = "".join(statements(text))
    assert kept.count("a") <= text.count("a")
    for statement in statements(text):
        assert statement in text

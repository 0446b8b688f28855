"""The prompt, typed into through a pipe, on a real ClickHouse."""

import io
import re
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from rich.console import Console

from headrace.cli.endpoints import connect_clickhouse
from headrace.cli.sql_shell import Names, Shell
from headrace.streams.settings import ClickHouseSettings


class Typist:
    def __init__(self, settings: ClickHouseSettings) -> None:
        self._settings = settings

    def __call__(self, *lines: str) -> str:
        console = Console(file=io.StringIO(), width=100)
        client = connect_clickhouse(self._settings)
        with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
            keys.send_text("\r".join([*lines, "\\q", ""]))
            Shell(client, self._settings.database, console).run()
        client.close()
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()


@pytest.fixture
def typed(clickhouse_settings: ClickHouseSettings) -> Typist:
    return Typist(clickhouse_settings)


pytestmark = pytest.mark.integration


def test_a_statement_may_take_several_lines(typed: Typist) -> None:
    shown = typed("SELECT 1 AS x,", "  'a;b' AS y", ";")
    assert "1  a;b" in shown
    assert "1 row, " in shown


def test_errors_do_not_end_it(typed: Typist) -> None:
    shown = typed("SELEC 1;", "SELECT 42 AS x;")
    assert "Error: Syntax error" in shown
    assert "42" in shown


def test_views_and_columns(typed: Typist) -> None:
    shown = typed("\\d", "\\d attempts_by_outcome", "\\d nope", "\\z", "\\?")
    assert re.search(r"attempts_by_outcome +view", shown)
    assert "Nullable(Float64)" in shown
    assert "Error: " in shown
    assert "no such command: \\z" in shown
    assert "Ctrl-D" in shown


def test_full_is_switched(typed: Typist) -> None:
    shown = typed("\\x", "SELECT range(100) AS ids;")
    assert str(list(range(100))) in shown


def test_names_follow_ddl(typed: Typist) -> None:
    assert "mine " in typed("CREATE VIEW mine AS SELECT 1 AS x;", "\\d", "DROP VIEW mine;")


def test_ctrl_c_drops_what_is_typed_and_ctrl_d_leaves(typed: Typist) -> None:
    assert "Error" not in typed("SELECT \x03", "SELECT 1;", "\x04")


def test_history_is_kept_for_its_owner(typed: Typist, tmp_path: Path) -> None:
    typed("SELECT 'remembered';")
    path = tmp_path / "state" / "headrace" / "sql_history"
    assert "remembered" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


NAMES = Names(["attempts", "spans"], ["attempts_log"], [("attempts", "status"), ("spans", "span_id")])


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("SELECT * FROM at", ["attempts", "attempts_log"]),
        ("SELECT spans.s", ["span_id"]),
        ("SELECT s", ["spans", "span_id", "status", "select", "sum", "show", "settings"]),
        ("SELECT st", ["status"]),
        ("SELECT st FROM spans WHERE s", ["spans", "span_id", "select", "sum", "show", "settings"]),
        ("sel", ["select"]),
        ("SEL", ["SELECT"]),
        ("", []),
    ],
)
def test_completion(text: str, wanted: list[str]) -> None:
    event = CompleteEvent(completion_requested=True)
    assert [found.text for found in NAMES.get_completions(Document(text), event)] == wanted

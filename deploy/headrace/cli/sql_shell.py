"""`headrace sql` without a query: a prompt with history, completion and statements of several lines."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import PygmentsLexer
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict
from pygments.lexers.sql import SqlLexer  # type: ignore[import-untyped]
from rich.console import Console
from rich.text import Text

from headrace.cli.endpoints import read_settings
from headrace.cli.sql_commands import show
from headrace.cli.sql_query import ask
from headrace.cli.sql_text import is_complete, statements
from headrace.cli.tables import Column, Row, print_table
from headrace.schemas.errors import HeadraceError

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

HELP = """\
A statement ends with `;` and may take several lines. Tab completes names, Ctrl-C drops what is typed.
  \\d         the views and tables
  \\d NAME    the columns of a view or table
  \\x         shorten values or not
  \\?         this
  \\q         leave (also Ctrl-D)"""

_KEYWORDS = (
    "SELECT FROM WHERE GROUP BY ORDER BY LIMIT HAVING WITH AS DISTINCT JOIN LEFT INNER ON USING IN NOT NULL "
    "AND OR LIKE ILIKE BETWEEN DESC ASC UNION ALL CASE WHEN THEN ELSE END "
    "count sum avg min max quantile uniqExact countIf "
    "avgIf groupArray arrayJoin length has any argMin argMax toStartOfMinute now round DESCRIBE SHOW "
    "TABLES EXPLAIN FORMAT SETTINGS FINAL"
)
KEYWORDS = tuple(dict.fromkeys(_KEYWORDS.split()))
_WORD = re.compile(r"[\w.]+$")


class ShellSettings(BaseSettings):
    """Where the prompt keeps its history."""

    model_config = SettingsConfigDict(env_prefix="XDG_", frozen=True)

    state_home: Path = Field(default_factory=lambda: Path.home() / ".local" / "state")

    @property
    def history_file(self) -> Path:
        return self.state_home / "headrace" / "sql_history"


class Names(Completer):
    """Completes views, tables, columns and the commoner words of SQL; views come first."""

    def __init__(
        self, views: Iterable[str], tables: Iterable[str], columns: Iterable[tuple[str, str]]
    ) -> None:
        self.views = tuple(views)
        self.tables = tuple(tables)
        self._columns: dict[str, list[str]] = {}
        for table, column in columns:
            self._columns.setdefault(table, []).append(column)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:  # noqa: ARG002
        match = _WORD.search(document.text_before_cursor)
        word = match[0] if match else ""
        table, dot, start = word.rpartition(".")
        if dot and table in self._columns:
            yield from self._matching(start, self._columns[table], table)
            return
        if not word and not document.text_before_cursor.endswith(" "):
            return
        yield from self._matching(word, self.views, "view")
        yield from self._matching(word, self._near_columns(document.text), "column")
        if word:
            yield from self._matching(word, self.tables, "table")
            yield from self._matching(word, KEYWORDS, "")

    def _near_columns(self, text: str) -> list[str]:
        """Columns of the tables that the statement names; of all where it names none yet."""
        named = [table for table in self._columns if re.search(rf"\b{re.escape(table)}\b", text)]
        return sorted({column for table in named or self._columns for column in self._columns[table]})

    @staticmethod
    def _matching(start: str, words: Iterable[str], kind: str) -> Iterator[Completion]:
        for word in words:
            if word.lower().startswith(start.lower()) and word != start:
                # In the case of what is typed: `sel` becomes `select`.
                text = word.lower() if not kind and start.islower() else word
                yield Completion(text, start_position=-len(start), display_meta=kind)


class Shell:
    """Reads statements until told to leave, and shows answers and errors."""

    def __init__(
        self,
        client: "Client",
        database: str,
        console: Console,
        *,
        full: bool = False,
        history: History | None = None,
    ) -> None:
        self._client = client
        self._database = database
        self._console = console
        self._full = full
        self._names = self._read_names()
        self._session: PromptSession[str] = PromptSession(
            history=history or _history(),
            auto_suggest=AutoSuggestFromHistory(),
            completer=self._names,
            complete_while_typing=False,
            lexer=PygmentsLexer(SqlLexer),
            multiline=Condition(self._goes_on),
            key_bindings=_bindings(),
            prompt_continuation=lambda width, _line, _wraps: "-> ".rjust(width),
        )

    def run(self) -> None:
        """Until Ctrl-D, or the command to leave."""
        words = f"{self._database}: {len(self._names.views)} views. \\d lists them, \\? helps, \\q leaves."
        self._console.print(Text(words, style="dim"))
        while True:
            try:
                text = self._session.prompt(f"{self._database}> ").strip()
            except KeyboardInterrupt:
                continue
            except EOFError:
                return
            if text in {"\\q", "exit", "quit", "exit;", "quit;"}:
                return
            try:
                self._handle(text)
            except KeyboardInterrupt:
                self._console.print(Text("cancelled", style="dim"))
            except HeadraceError as error:
                self._console.print(Text(f"Error: {error}", style="red"), soft_wrap=True)

    def _handle(self, text: str) -> None:
        if text.startswith("\\"):
            self._command(*text.rstrip(";").split())
            return
        for statement in statements(text):
            show(self._client, statement, self._console, full=self._full)
            self._console.print()
            if re.match(r"(CREATE|DROP|ALTER|RENAME)\b", statement, re.IGNORECASE):
                self._names = self._session.completer = self._read_names()

    def _command(self, command: str, *arguments: str) -> None:
        match command, arguments:
            case "\\d", ():
                self._list()
            case "\\d", (name,):
                self._describe(name)
            case "\\x", ():
                self._full = not self._full
                self._console.print("values are shown whole" if self._full else "values are shortened")
            case "\\?", ():
                self._console.print(HELP, markup=False, highlight=False)
            case _:
                self._console.print(f"no such command: {command}. \\? shows what there is", markup=False)

    def _list(self) -> None:
        rows: list[Row] = [[name, "view"] for name in self._names.views]
        rows += [[name, Text("table", style="dim")] for name in self._names.tables]
        print_table(self._console, [Column("name"), Column("kind")], rows)
        words = "Views hold each thing once; the *_log tables hold rows as they came."
        self._console.print(Text(words, style="dim"))

    def _describe(self, name: str) -> None:
        database, _, table = name.rpartition(".")
        quoted = ".".join(f"`{part.replace('`', '')}`" for part in (database or self._database, table))
        rows = [row[:2] for row in self._rows(f"DESCRIBE TABLE {quoted}")]
        print_table(self._console, [Column("column"), Column("type")], rows, full=True)

    def _read_names(self) -> Names:
        database = self._database
        tables = self._rows(
            f"SELECT name, engine LIKE '%View' FROM system.tables WHERE database = '{database}' ORDER BY name"  # noqa: S608  checked by its settings
        )
        columns = self._rows(f"SELECT table, name FROM system.columns WHERE database = '{database}'")  # noqa: S608
        return Names(
            [str(name) for name, is_view in tables if is_view],
            [str(name) for name, is_view in tables if not is_view],
            [(str(table), str(column)) for table, column in columns],
        )

    def _rows(self, statement: str) -> list[list[object]]:
        with ask(self._client, statement) as answer:
            return list(answer.rows()[1])

    def _goes_on(self) -> bool:
        """Whether Enter makes a new line: a statement that has no `;` yet."""
        text = self._session.default_buffer.text.strip()
        return not (text in {"", "exit", "quit"} or text.startswith("\\") or is_complete(text))


def _history() -> History:
    """Queries may quote prompts: the file is its owner's alone."""
    path = read_settings(ShellSettings).history_file
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
    except OSError:
        from prompt_toolkit.history import InMemoryHistory  # noqa: PLC0415  a home that can't be written to

        return InMemoryHistory()
    return FileHistory(str(path))


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("escape", "enter")
    def run_anyway(event: KeyPressEvent) -> None:
        """Esc Enter sends a statement without its `;`."""
        event.current_buffer.validate_and_handle()

    return bindings

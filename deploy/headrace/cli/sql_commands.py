"""`headrace sql` and `headrace migrate`."""

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click
from rich.console import Console
from rich.text import Text

from headrace.cli.assets import asset
from headrace.cli.endpoints import clickhouse_settings, connect_clickhouse
from headrace.cli.examples import examples
from headrace.cli.sql_errors import QueryError, server_message
from headrace.cli.sql_text import statements
from headrace.cli.tables import Column, print_table

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

    from headrace.cli.sql_query import Answer, ColumnType

MAX_ROWS = 1000
"""What a table shows without `--full`: more is for a file, not for eyes."""


@click.command(
    epilog=examples(
        "headrace sql                                      # a prompt; \\? there shows its commands",
        'headrace sql "SELECT * FROM attempts_by_outcome"',
        'headrace sql "SELECT * FROM transitions" --format parquet --output transitions.parquet',
        'headrace sql "SELECT * FROM generations LIMIT 1" --full',
        "headrace sql --file report.sql",
        "echo 'SHOW TABLES' | headrace sql -",
    )
)
@click.argument("query", required=False)
@click.option("--file", "-f", type=click.File(), help="Read the statements from a file.")
@click.option(
    "--format",
    "-F",
    "output_format",
    type=click.Choice(["table", "csv", "json", "parquet"]),
    default="table",
    show_default=True,
    help="csv has a header, and nothing for NULL; json is one object a line.",
)
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="Write there, once it is whole."
)
@click.option("--full", is_flag=True, help="Shorten no value, leave out no row.")
def sql(
    query: str | None, *, file: IO[str] | None, output_format: str, output: Path | None, full: bool
) -> None:
    """Ask ClickHouse: a query, a file, `-` for standard input, or a prompt.

    The public views are rollouts, attempts, spans, generations, rewards, trajectories, transitions,
    batches, resources, train_steps and dead_letters; they are deduplicated, the *_log tables are not.
    Times are in UTC. Tables show the first 1,000 rows, and shorten values to fit the terminal.
    """
    if query is not None and file is not None:
        raise click.UsageError("give a query or --file, not both")
    if output is not None and output_format == "table":
        raise click.UsageError("--output needs --format csv, json or parquet")
    # It logs what it raises; the message is shown once, by the command.
    logging.getLogger("clickhouse_connect").setLevel(logging.CRITICAL)
    text = file.read() if file else query
    if text == "-" or (text is None and not sys.stdin.isatty()):
        text = sys.stdin.read()
    if text is None:
        if output_format != "table":
            raise click.UsageError("--format is for a query, a file or standard input")
        _prompt(full=full)
        return
    asked = statements(text)
    if not asked:
        raise click.UsageError("there is no statement to run")
    if output_format == "table":
        _show(asked, full=full)
    else:
        _export(asked, output_format, output)


@click.command(epilog=examples("headrace migrate", "HEADRACE_CLICKHOUSE_DATABASE=staging headrace migrate"))
def migrate() -> None:
    """Bring ClickHouse's tables and views up to date.

    Applies the numbered migrations that the database lacks, and says which. `headrace up` does it too.
    """
    from clickhouse_connect.driver.exceptions import ClickHouseError  # noqa: PLC0415  an extra

    from headrace.streams import clickhouse  # noqa: PLC0415  half a second

    settings = clickhouse_settings()
    connect_clickhouse(settings, database="").close()
    place = f"database {settings.database} at {settings.host}:{settings.port}"
    try:
        applied = clickhouse.migrate(settings, asset("clickhouse"))
    except (ClickHouseError, clickhouse.ClickHouseRefusedError, clickhouse.RefusedDataError) as error:
        raise QueryError(f"{place} was not migrated: {server_message(str(error))}") from error
    for name in applied:
        click.echo(f"applied {name}")
    known = len(clickhouse.migrations(asset("clickhouse")))
    words = f"{len(applied)} applied" if applied else "nothing to do"
    click.echo(f"{place}: {words}, {known} in all")


def show(client: "Client", statement: str, console: Console, *, full: bool = False) -> None:
    """Run a statement and show its answer as a table, with its number of rows and its time below."""
    from headrace.cli.sql_query import TABLE_FORMAT, ask  # noqa: PLC0415  an extra

    start_s = time.perf_counter()
    with ask(client, statement) as answer:
        if answer.format not in {None, TABLE_FORMAT}:
            # The statement names a FORMAT of its own.
            _copy(answer.chunks(), sys.stdout.buffer)
            return
        columns, rows = answer.rows()
        limit = None if full else MAX_ROWS
        shown = [_readable(columns, row) for row in islice(rows, limit)]
        has_more = limit is not None and next(rows, None) is not None
        seconds = time.perf_counter() - start_s
        if columns:
            headings = [Column(column.name, column.is_number, column.is_time) for column in columns]
            print_table(console, headings, shown, full=full)
        console.print(Text(_footer(answer, columns, len(shown), seconds, has_more=has_more), style="dim"))


def _footer(
    answer: "Answer", columns: "list[ColumnType]", num_rows: int, seconds: float, *, has_more: bool
) -> str:
    took = f"{seconds:.3f} s"
    if not columns:
        written = answer.num_written
        return f"ok, {written:,} row{'s' * (written != 1)} written, {took}" if written else f"ok, {took}"
    utc = ", times in UTC" if any(column.is_time for column in columns) else ""
    if has_more:
        return f"the first {num_rows:,} rows, {took}{utc}; --full shows all, --format csv writes them"
    return f"{num_rows:,} row{'s' * (num_rows != 1)}, {took}{utc}"


def _readable(columns: "list[ColumnType]", row: list[object]) -> list[object]:
    """Times as people write them; the footer says that they are in UTC."""
    return [
        value.replace("T", " ").removesuffix("Z") if column.is_time and isinstance(value, str) else value
        for column, value in zip(columns, row, strict=True)
    ]


def _show(asked: Iterable[str], *, full: bool) -> None:
    console = Console()
    with _client() as client:
        for number, statement in enumerate(asked):
            if number:
                console.print()
            show(client, statement, console, full=full)


def _export(asked: list[str], output_format: str, output: Path | None) -> None:
    from headrace.cli.sql_query import ask  # noqa: PLC0415  an extra

    if output_format == "parquet" and output is None and sys.stdout.isatty():
        raise click.UsageError("parquet is binary: give --output FILE, or send it into a pipe")
    if output_format == "parquet" and len(asked) > 1:
        raise click.UsageError("a parquet file holds the answer of one statement")
    target: AbstractContextManager[IO[bytes]] = (
        _whole_file(output) if output else nullcontext(sys.stdout.buffer)
    )
    with _client() as client, target as file:
        for statement in asked:
            with ask(client, statement, output_format) as answer:
                _copy(answer.chunks(), file)


def _copy(chunks: Iterable[bytes], file: IO[bytes]) -> None:
    for chunk in chunks:
        file.write(chunk)
    file.flush()


@contextmanager
def _whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears when it is whole, and leaves nothing behind when it does not get so far."""
    scratch = path.with_name(f".{path.name}.part")
    try:
        with scratch.open("wb") as file:
            yield file
        scratch.replace(path)
    except OSError as error:
        raise click.FileError(str(path), str(error.strerror)) from error
    finally:
        scratch.unlink(missing_ok=True)


@contextmanager
def _client() -> Iterator["Client"]:
    client = connect_clickhouse(clickhouse_settings())
    try:
        yield client
    finally:
        client.close()


def _prompt(*, full: bool) -> None:
    from headrace.cli.sql_shell import Shell  # noqa: PLC0415  an extra, and half a second

    settings = clickhouse_settings()
    with _client() as client:
        Shell(client, settings.database, Console(), full=full).run()

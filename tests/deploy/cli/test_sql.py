"""`headrace sql` on a real ClickHouse."""

import csv
import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.deploy.cli.conftest import Cli

from headrace.cli.sql_commands import sql
from headrace.cli.stack.clickhouse import ClickHouseServer

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("clickhouse_settings")]

VALUES = (
    "SELECT 1 AS n, NULL AS nothing, '' AS empty, nan AS x, [1, 2] AS ids, "
    "toDateTime64('2026-01-01 12:00:00.25', 6, 'Asia/Tokyo') AS t, 18446744073709551615 AS big"
)
BREAKS_OFF = (
    "SELECT number, throwIf(number = 300000, 'enough') FROM numbers(400000) SETTINGS max_block_size = 1000"
)


def test_a_table(sql_cli: Cli) -> None:
    lines = sql_cli("sql", VALUES).stdout.splitlines()
    assert lines[0].split() == ["n", "nothing", "empty", "x", "ids", "t", "big"]
    assert lines[2] == "1  NULL            nan  [1, 2]  2026-01-01 03:00:00.250000  18446744073709551615"
    assert lines[3].startswith("1 row, ")
    assert lines[3].endswith(" s, times in UTC")


def test_a_table_fits_the_terminal_and_full_does_not(sql_cli: Cli) -> None:
    query = "SELECT repeat('x', 500) AS text, range(512) AS ids"
    shown = sql_cli("sql", query).stdout
    assert "… 512 items]" in shown
    assert max(map(len, shown.splitlines())) <= 160
    full = sql_cli("sql", query, "--full").stdout
    assert "x" * 500 in full
    assert str(list(range(512))) in full


def test_a_table_shows_the_first_rows_of_many(sql_cli: Cli) -> None:
    shown = sql_cli("sql", "SELECT number FROM numbers(100000000)").stdout.splitlines()
    assert len(shown) == 1003
    assert shown[-1].startswith("the first 1,000 rows, ")


def test_csv_has_a_header_and_tells_null_from_empty(sql_cli: Cli) -> None:
    text = sql_cli("sql", VALUES, "--format", "csv").stdout
    assert '1,,"",nan' in text
    (row,) = csv.DictReader(io.StringIO(text))
    assert row["t"] == "2026-01-01T03:00:00.250000Z"
    assert row["ids"] == "[1,2]"


def test_json_is_one_object_a_line(sql_cli: Cli) -> None:
    (row,) = map(json.loads, sql_cli("sql", VALUES, "--format", "json").stdout.splitlines())
    assert row == {
        "n": 1,
        "nothing": None,
        "empty": "",
        "x": "nan",
        "ids": [1, 2],
        "t": "2026-01-01T03:00:00.250000Z",
        "big": 18446744073709551615,
    }


def test_bytes_that_are_no_utf_8(sql_cli: Cli) -> None:
    query = "SELECT unhex('ff61') AS b"
    assert "\\xffa" in sql_cli("sql", query).stdout
    assert json.loads(sql_cli("sql", query, "--format", "json").stdout) == {"b": "\ufffda"}


def test_parquet_to_a_file_and_a_pipe(sql_cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"
    query = "SELECT number, toDateTime64(number, 6, 'UTC') AS t FROM numbers(1000)"
    sql_cli("sql", query, "--format", "parquet", "--output", str(path))
    table = pq.read_table(path)
    assert table.column("number").to_pylist() == list(range(1000))
    assert str(table.schema.field("t").type) == "timestamp[us, tz=UTC]"
    piped = sql_cli("sql", query, "--format", "parquet").stdout_bytes
    assert pq.read_table(io.BytesIO(piped)).equals(table)


def test_parquet_is_refused_on_a_terminal(sql_cli: Cli) -> None:
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "headrace.cli", "sql", "SELECT 1", "--format", "parquet"],
            env=os.environ | sql_cli.env,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 2
    assert "parquet is binary: give --output FILE" in done.stderr


def test_a_large_result_streams(sql_cli: Cli) -> None:
    small, small_kib = exported(sql_cli, num_rows=1)
    large, large_kib = exported(sql_cli, num_rows=3_000_000)
    assert (small, large) == (2, 3_000_001)
    # The result is 330 MB.
    assert large_kib - small_kib < 32 * 1024


def exported(cli: Cli, *, num_rows: int) -> tuple[int, int]:
    """Lines written, and the peak of memory in KiB, of a process of its own."""
    program = (
        "import resource, sys; from headrace.cli.main import main\n"
        "try: main(['sql', sys.argv[1], '--format', 'csv'])\n"
        "finally: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, f"SELECT number, repeat('x', 100) FROM numbers({num_rows})"],
        env=os.environ | cli.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        return sum(1 for _ in process.stdout), int(process.stderr.read())


def test_an_answer_that_breaks_off_is_an_error_and_not_data(sql_cli: Cli) -> None:
    result = sql_cli("sql", BREAKS_OFF, "--format", "csv", status=1)
    assert result.stderr == "Error: enough. (FUNCTION_THROW_IF_VALUE_IS_NON_ZERO)\n"
    header, *lines = result.stdout.splitlines()
    assert header.startswith('"number"')
    assert len(lines) > 1000
    assert lines == [f"{number},0" for number in range(len(lines))]
    assert result.stdout.endswith("\n")


def test_a_file_appears_when_it_is_whole(sql_cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    path.write_text("before")
    sql_cli("sql", BREAKS_OFF, "--format", "csv", "--output", str(path), status=1)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
    sql_cli("sql", "SELECT 1 AS x", "--format", "csv", "--output", str(path))
    assert path.read_text() == '"x"\n1\n'
    result = sql_cli("sql", "SELECT 1", "--format", "csv", "--output", str(tmp_path / "no" / "x"), status=1)
    assert "No such file or directory" in result.stderr


def test_statements_of_all_kinds_from_a_file(sql_cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "many.sql"
    path.write_text(
        "CREATE TABLE mine (s String) ENGINE = Memory; -- one\n"
        "INSERT INTO mine VALUES ('a;b'), ('c');\n"
        "SELECT s FROM mine ORDER BY s;\nDROP TABLE mine;"
    )
    shown = sql_cli("sql", "--file", str(path)).stdout.splitlines()
    assert shown[0].startswith("ok, ")
    assert shown[2].startswith("ok, 2 rows written, ")
    assert shown[4:8] == ["s  ", "───", "a;b", "c  "]


@pytest.mark.parametrize("arguments", [["-"], []], ids=["dash", "nothing"])
def test_statements_from_standard_input(sql_cli: Cli, arguments: list[str]) -> None:
    shown = sql_cli("sql", *arguments, "--format", "csv", stdin="SELECT 1 AS x; SELECT 2 AS y").stdout
    assert shown == '"x"\n1\n"y"\n2\n'


def test_a_format_in_the_statement_is_kept(sql_cli: Cli) -> None:
    assert sql_cli("sql", "SELECT 1 AS x, 'a' AS y FORMAT TSVWithNames").stdout == "x\ty\n1\ta\n"


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("SELECT * FROM nope", "Unknown table expression identifier 'nope'"),
        ("SELEC 1", "  SELEC 1\n        ^"),
        ("SELECT 1/", "Syntax error"),
        ("SELECT throwIf(1, 'no')", "Error: no. (FUNCTION_THROW_IF_VALUE_IS_NON_ZERO)"),
    ],
)
def test_what_clickhouse_says_without_noise(sql_cli: Cli, statement: str, words: str) -> None:
    result = sql_cli("sql", statement, status=1)
    assert words in result.stderr
    assert not any(
        noise in result.output for noise in ("version 2", "http://", "DB::", "Traceback", "Driver")
    )


def test_a_database_that_is_missing(sql_cli: Cli) -> None:
    result = Cli(sql_cli.env | {"HEADRACE_CLICKHOUSE_DATABASE": "nowhere"})("sql", "SELECT 1", status=1)
    assert "Database nowhere does not exist" in result.stderr
    assert "headrace migrate" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["SELECT 1", "--file", __file__],
        ["SELECT 1", "--output", "x"],
        ["-- nothing"],
        ["SELECT 1; SELECT 2", "--format", "parquet"],
    ],
)
def test_usage(sql_cli: Cli, arguments: list[str]) -> None:
    assert "Error: " in sql_cli("sql", *arguments, status=2).stderr


def test_the_views_in_the_help_exist(sql_cli: Cli) -> None:
    text = " ".join((sql.help or "").split())
    views = text.partition("public views are ")[2].partition(";")[0].replace(" and ", ", ").split(", ")
    assert len(views) > 8
    for view in views:
        sql_cli("sql", f"SELECT * FROM {view} LIMIT 0")


def test_times_are_in_utc_wherever_the_server_is(clickhouse_factory: Callable[..., ClickHouseServer]) -> None:
    """C16."""
    server = clickhouse_factory(timezone="Asia/Tokyo")
    server.start()
    cli = Cli({"HEADRACE_CLICKHOUSE_PORT": str(server.port), "HEADRACE_CLICKHOUSE_DATABASE": "default"})
    query = "SELECT toDateTime('2026-01-01 00:00:00') AS x, fromUnixTimestamp64Micro(1767225600000000) AS y"
    assert cli("sql", query).stdout.splitlines()[2] == "2026-01-01 00:00:00  2026-01-01 00:00:00.000000"
    assert (
        '"2026-01-01T00:00:00Z","2026-01-01T00:00:00.000000Z"' in cli("sql", query, "--format", "csv").stdout
    )


def test_migrate_says_what_it_did(clickhouse: ClickHouseServer, sql_cli: Cli) -> None:
    fresh = Cli(sql_cli.env | {"HEADRACE_CLICKHOUSE_DATABASE": f"fresh_{os.getpid()}"})
    said = fresh("migrate").stdout.splitlines()
    assert said[0] == "applied 0001 tables"
    assert said[-1].endswith(f": {len(said) - 1} applied, {len(said) - 1} in all")
    assert fresh("migrate").stdout.endswith(f": nothing to do, {len(said) - 1} in all\n")


def test_a_migration_that_fails_says_why(
    sql_cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "0001_bad.sql").write_text("CREATE VIEW {database}.v AS SELECT * FROM {database}.nope;")
    monkeypatch.setattr("headrace.cli.sql_commands.asset", lambda _name: tmp_path)
    fresh = Cli(sql_cli.env | {"HEADRACE_CLICKHOUSE_DATABASE": f"bad_{os.getpid()}"})
    result = fresh("migrate", status=1)
    assert "was not migrated: Unknown table expression identifier" in result.stderr
    assert "version 2" not in result.stderr

"""ClickHouse: a client from settings, the numbered migrations, and which errors mean what.

Needs the `streams` extra.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import clickhouse_connect
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from headrace.schemas.errors import FatalError, RetryableError
from headrace.streams.settings import ClickHouseSettings

_CODE = re.compile(r"code:? (\d+)", re.IGNORECASE)

INCORRECT_DATA = frozenset({117, 131, 190, 349, 395, 469})
"""Incorrect data, arrays of unequal sizes, a throwIf of ours, a violated constraint and the like."""
_CPP_EXCEPTION = 1001
_TROUBLE = frozenset(
    {74, 75, 76, 95, 96, 99, 101, 107, 159, 160, 164, 173, 198, 201, 202, 203, 204, 209, 210, 236, 241}
    | {242, 243, 252, 279, 285, 286, 290, 319, 394, 415, 425, 439, 606, 659, 667, 668, 677, 733, 999, 1000}
)
"""Disk, memory, network, limits, shutdown: the same statement may do well later."""


class ClickHouseUnavailableError(RetryableError):
    """It can't be reached, or is too busy or too full right now."""


class RefusedDataError(Exception):
    """The insert was refused for what is in it; nothing of it was kept."""


class ClickHouseRefusedError(FatalError):
    """A statement is wrong, a table is missing or rights are: somebody has to change something."""


def connect(settings: ClickHouseSettings, *, database: str | None = None) -> Client:
    """A client on the configured database. ClickHouseUnavailableError if there is no answer.

    Results come in UTC whatever the zones of server and client (C16).
    """
    try:
        return clickhouse_connect.get_client(
            host=settings.host,
            port=settings.port,
            username=settings.username,
            password=settings.password.get_secret_value(),
            database=settings.database if database is None else database,
            secure=settings.secure,
            tz_mode="aware",
            compress=False,
            autogenerate_session_id=False,
            connect_timeout=10,
            send_receive_timeout=300,
            query_retries=0,
        )
    except ClickHouseError as error:
        raise translate(error, settings) from error


def error_code(error: BaseException) -> int | None:
    """ClickHouse's own number for what went wrong, where the server answered."""
    match = _CODE.search(str(error))
    return int(match[1]) if match else None


def translate(error: Exception, settings: ClickHouseSettings) -> Exception:
    """The same error by what its receiver does: retry, dead-letter, or stop."""
    code = error_code(error)
    text = str(error)
    if code in INCORRECT_DATA or (code == _CPP_EXCEPTION and "avro::Exception" in text):
        return RefusedDataError(text)
    if code is not None and code not in _TROUBLE:
        return ClickHouseRefusedError(f"ClickHouse at {settings.host}:{settings.port} refused: {text}")
    return ClickHouseUnavailableError(f"ClickHouse at {settings.host}:{settings.port}: {text}")


class Migration(NamedTuple):
    """A numbered file of statements, separated by `;` at the end of a line."""

    number: int
    name: str
    path: Path

    def statements(self, database: str) -> Iterator[str]:
        text = "\n".join(
            line for line in self.path.read_text().splitlines() if not line.lstrip().startswith("--")
        )
        for statement in re.split(r";\s*(?:\n|$)", text):
            if statement.strip():
                yield statement.strip().replace("{database}", f"`{database}`")


def migrations(folder: Path) -> list[Migration]:
    """The migrations in a folder, `0001_name.sql` and so on, without gaps."""
    found = []
    for path in sorted(folder.glob("*.sql")):
        number, _, name = path.stem.partition("_")
        found.append(Migration(int(number), name, path))
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise FatalError(f"migrations in {folder} must be numbered 1, 2, 3 …")
    return found


def migrate(settings: ClickHouseSettings, folder: Path) -> list[str]:
    """Apply what is not applied yet; return the names. Statements are safe to run twice, so that a
    migration cut short is run again.
    """
    server = connect(settings, database="")
    database = settings.database
    server.command(f"CREATE DATABASE IF NOT EXISTS `{database}`")
    server.command(
        f"CREATE TABLE IF NOT EXISTS `{database}`.migrations "
        "(number UInt32, name String, time DateTime64(6, 'UTC') DEFAULT now64(6)) "
        "ENGINE = ReplacingMergeTree ORDER BY number"
    )
    rows = server.query(f"SELECT number FROM `{database}`.migrations").result_rows  # noqa: S608  a checked name
    done = {int(row[0]) for row in rows}
    newest = max((migration.number for migration in migrations(folder)), default=0)
    if done and max(done) > newest:
        raise FatalError(
            f"database {database} is at migration {max(done)}, and this version of headrace knows up to "
            f"{newest}: use a newer version"
        )
    applied = []
    for migration in migrations(folder):
        if migration.number in done:
            continue
        for statement in migration.statements(database):
            run(server, statement, settings)
        server.insert(
            "migrations",
            [[migration.number, migration.name]],
            column_names=["number", "name"],
            database=database,
        )
        applied.append(f"{migration.number:04} {migration.name}")
    return applied


def run(client: Client, statement: str, settings: ClickHouseSettings, **options: Any) -> Any:  # noqa: ANN401
    """A command, with errors translated."""
    try:
        return client.command(statement, **options)
    except ClickHouseError as error:
        raise translate(error, settings) from error

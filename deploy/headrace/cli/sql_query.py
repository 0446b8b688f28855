"""One statement to ClickHouse and its answer as a stream.

An answer that breaks off raises QueryError with the server's words, and those never get mixed into the
data. Nothing is buffered but the last 20 KiB, in which such words would stand. Times are in UTC (C16).
"""

import json
import re
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from clickhouse_connect.driver.exceptions import ClickHouseError
from urllib3.exceptions import HTTPError

from headrace.cli.sql_errors import QueryError, cause, pointed, server_message
from headrace.cli.sql_text import has_format
from headrace.streams.clickhouse import ClickHouseUnavailableError

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

TABLE_FORMAT = "JSONCompactEachRowWithNamesAndTypes"
EXPORTS = {"csv": "CSVWithNames", "json": "JSONEachRow", "parquet": "Parquet"}

_CHUNK = 64 * 1024
_HELD = 20 * 1024
"""The server writes at most 16 KiB of an error behind data that it sent already."""
_BARE_ERROR = re.compile(rb"\r?\n?Code: \d+\. DB::Exception")
_NUMBER = re.compile(r"(U?Int|Float|BFloat|Decimal)\d*(\(|$)")
_WRAPPER = re.compile(r"^(?:Nullable|LowCardinality)\((.*)\)$")
_SETTINGS = {
    "session_timezone": "UTC",
    "date_time_output_format": "iso",
    "output_format_json_quote_denormals": 1,
    "format_csv_null_representation": "",
    # Ctrl-C closes the connection, and the server stops working on what nobody will read.
    "cancel_http_readonly_queries_on_client_close": 1,
}
_TABLE_SETTINGS = _SETTINGS | {
    # As text: a number of 128 or 256 bits, and each digit of a decimal, is to be seen as it is.
    "output_format_json_quote_64bit_integers": 1,
    "output_format_json_quote_decimals": 1,
    "output_format_json_named_tuples_as_objects": 1,
}
_EXPORT_SETTINGS = _SETTINGS | {"output_format_json_validate_utf8": 1}


class ColumnType(NamedTuple):
    """A column of an answer, by ClickHouse's name of its type."""

    name: str
    type: str

    @property
    def bare_type(self) -> str:
        """Without Nullable and LowCardinality."""
        bare = self.type
        while match := _WRAPPER.match(bare):
            bare = match[1]
        return bare

    @property
    def is_number(self) -> bool:
        return bool(_NUMBER.match(self.bare_type))

    @property
    def is_time(self) -> bool:
        return self.bare_type.startswith("DateTime")


class Answer:
    """What the server sends back. Use it as a context manager: leaving it early cancels the query."""

    def __init__(self, response: Any, statement: str) -> None:  # noqa: ANN401  urllib3's response, untyped there
        self._response = response
        self._statement = statement
        self.format: str | None = response.headers.get("X-ClickHouse-Format")
        """None where there is nothing to show: DDL, INSERT."""

    @property
    def num_written(self) -> int:
        """Rows that the statement inserted."""
        summary = json.loads(self._response.headers.get("X-ClickHouse-Summary") or "{}")
        return int(summary.get("written_rows", 0))

    def chunks(self) -> Iterator[bytes]:
        """The bytes as they come. QueryError when the server gives up, after what it sent before."""
        held = b""
        try:
            for chunk in self._response.stream(_CHUNK):
                held += chunk
                if len(held) > _HELD:
                    yield held[:-_HELD]
                    held = held[-_HELD:]
        except (HTTPError, OSError) as error:
            data, words = self._parted(held)
            yield data
            if not words:
                raise ClickHouseUnavailableError(
                    f"ClickHouse broke off its answer: {cause(error)}"
                ) from error
            raise QueryError(server_message(words)) from None
        yield held

    def rows(self) -> tuple[list[ColumnType], Iterator[list[object]]]:
        """The columns, and the rows as they come; for TABLE_FORMAT."""
        lines = self._lines()
        names, types = next(lines, "[]"), next(lines, "[]")
        columns = [ColumnType(*pair) for pair in zip(json.loads(names), json.loads(types), strict=True)]
        return columns, (json.loads(line) for line in lines)

    def _lines(self) -> Iterator[str]:
        rest = b""
        for chunk in self.chunks():
            *whole, rest = (rest + chunk).split(b"\n")
            # Strings are bytes to ClickHouse: what is no UTF-8 is kept, and shown as \xNN.
            yield from (line.decode(errors="surrogateescape") for line in whole if line)

    def _parted(self, held: bytes) -> tuple[bytes, str]:
        tag = self._response.headers.get("X-ClickHouse-Exception-Tag", "")
        mark = f"__exception__\r\n{tag}".encode()
        at = held.find(mark)
        if at < 0:
            # Servers before 25.11 have no tag.
            match = _BARE_ERROR.search(held)
            at = match.start() if match else len(held)
        return held[:at].removesuffix(b"\r\n"), held[at:].removeprefix(mark).decode(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Not into the pool again: the rest of an answer may be on its way.
        self._response.close()


def ask(client: "Client", statement: str, export: str | None = None) -> Answer:
    """Start a statement. Without an export format the answer is in TABLE_FORMAT, or in its own FORMAT."""
    headers = {}
    if export is not None:
        headers["X-ClickHouse-Format"] = EXPORTS[export]
    elif not has_format(statement):
        headers["X-ClickHouse-Format"] = TABLE_FORMAT
    settings = _TABLE_SETTINGS if export is None else _EXPORT_SETTINGS
    try:
        response = client.raw_stream(statement, settings=settings, transport_settings=headers)
    except ClickHouseError as error:
        message = server_message(str(error))
        if message == str(error):
            raise ClickHouseUnavailableError(f"no answer from ClickHouse: {cause(error)}") from error
        raise QueryError(pointed(message, statement)) from error
    return Answer(response, statement)

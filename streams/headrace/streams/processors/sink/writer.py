"""Writes batches of one partition to ClickHouse: all of a batch, or nothing of it and a reason.

The fast way trusts the bytes and lets ClickHouse read them; constraints and checks there stand for the
models here. When it refuses, each record is decoded in Python, the bad ones are set aside for
dead-letters, and the rest goes again under the same token. What only ClickHouse refuses is found by
halving. Every insert carries a token that names its exact range, so that replaying the range adds nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from headrace.schemas.codec import HEADER, Codec
from headrace.schemas.errors import BadRecordError
from headrace.schemas.records import DeadLetter
from headrace.schemas.topics import TopicSpec
from headrace.schemas.versions import newest
from headrace.streams.clickhouse import ClickHouseRefusedError, RefusedDataError, translate
from headrace.streams.processor import LogRecord
from headrace.streams.processors.dead_letters import REFUSED, dead_letter
from headrace.streams.processors.sink.container import container
from headrace.streams.processors.sink.statement import Table, insert_statement
from headrace.streams.processors.sink.tables import TABLES
from headrace.streams.settings import ClickHouseSettings

CONSUMER = "sink"

_SETTINGS: dict[str, Any] = {
    # One block an insert, so that a refused one leaves nothing behind (measured: split blocks do).
    "async_insert": 0,
    "max_threads": 1,
    "max_insert_threads": 1,
    "max_block_size": 1_048_576,
    "max_insert_block_size": 1_048_576,
    "min_insert_block_size_rows": 1_048_576,
    "min_insert_block_size_bytes": 1_073_741_824,
    "insert_deduplicate": 1,
    # Avro's own rules, not lenient ones: an absent field is an error here, and null is not a default.
    "input_format_avro_allow_missing_fields": 0,
    "input_format_avro_null_as_default": 0,
    "optimize_on_insert": 0,
}


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive records of one partition, as the intent recorded them."""

    spec: TopicSpec
    topic: str
    partition: int
    first: int
    last: int
    records: Sequence[LogRecord]

    @property
    def token(self) -> str:
        return f"{self.topic}:{self.partition}:{self.first}-{self.last}"


class ClickHouseWriter:
    """Not safe to share between threads: each has its own client."""

    def __init__(self, client: Client, settings: ClickHouseSettings, codec: Codec) -> None:
        self._client = client
        self._settings = settings
        self._codec = codec
        self._statements: dict[tuple[str, int], str] = {}

    def write(self, batch: Batch) -> list[DeadLetter]:
        """Put the batch into its tables; what can't be comes back. Safe to repeat with the same batch.

        ClickHouseUnavailableError: try the same batch again. ClickHouseRefusedError: stop.
        """
        letters: list[DeadLetter] = []
        framed: list[LogRecord] = []
        good_headers: set[bytes] = set()
        for record in batch.records:
            header = (record.value or b"")[: HEADER.size]
            if header not in good_headers:
                try:
                    self._codec.unframe(record.value, batch.spec.record)
                except BadRecordError as error:
                    letters.append(dead_letter(CONSUMER, record, error.reason, str(error)))
                    continue
                good_headers.add(header)  # all that unframe looks at
            framed.append(record)
        for table in TABLES[batch.spec.name]:
            if framed:
                letters += self._write_table(table, batch, framed)
        return letters

    def _write_table(self, table: Table, batch: Batch, records: Sequence[LogRecord]) -> list[DeadLetter]:
        try:
            self._insert(table, records, batch.token)
        except RefusedDataError as refused:
            good, letters = self._sift(batch, records)
            if not letters:
                return self._halve(table, records, batch.token, refused)
            try:
                if good:
                    self._insert(table, good, batch.token)
            except RefusedDataError as again:
                letters += self._halve(table, good, batch.token, again)
            return letters
        return []

    def _sift(self, batch: Batch, records: Sequence[LogRecord]) -> tuple[list[LogRecord], list[DeadLetter]]:
        """Decode each record: those that are well, and the dead letters of those that are not."""
        good: list[LogRecord] = []
        letters: list[DeadLetter] = []
        for record in records:
            try:
                self._codec.decode(record.value, batch.spec.record_type)
            except BadRecordError as error:
                letters.append(dead_letter(CONSUMER, record, error.reason, str(error)))
            else:
                good.append(record)
        return good, letters

    def _halve(
        self, table: Table, records: Sequence[LogRecord], token: str, refused: RefusedDataError
    ) -> list[DeadLetter]:
        """Insert what ClickHouse takes of records that Python finds well; dead letters of the others."""
        letters: list[DeadLetter] = []
        parts = [records]
        while parts:
            part = parts.pop()
            if len(part) == 1:
                (record,) = part
                try:
                    self._insert(table, part, f"{token}/{record.offset}")
                except RefusedDataError as error:
                    letters.append(dead_letter(CONSUMER, record, REFUSED, f"{table.name}: {error}"))
                continue
            middle = len(part) // 2
            for half in (part[:middle], part[middle:]):
                try:
                    self._insert(table, half, f"{token}/{half[0].offset}-{half[-1].offset}")
                except RefusedDataError:
                    parts.append(half)
            if len(letters) > 1 and len(letters) == len(records):
                break
        if len(records) > 1 and len(letters) == len(records):
            # Not the records' fault: they are all well, and not one fits.
            raise ClickHouseRefusedError(
                f"table {table.name} takes none of {len(records)} well-formed records; do its columns and "
                f"constraints fit this version? {refused}"
            )
        return letters

    def _insert(self, table: Table, records: Sequence[LogRecord], token: str) -> None:
        by_header: dict[bytes, list[LogRecord]] = {}
        for record in records:
            by_header.setdefault((record.value or b"")[: HEADER.size], []).append(record)
        for header, alike in by_header.items():
            _, schema_id = HEADER.unpack(header)
            source = self._codec.ids.schema_of(schema_id).source
            try:
                self._client.raw_insert(
                    self._statement(table, schema_id),
                    insert_block=container(source, alike),
                    fmt="Avro",
                    settings=_SETTINGS | {"insert_deduplication_token": f"{token}:{schema_id}"},
                )
            except ClickHouseError as error:
                raise translate(error, self._settings) from error

    def _statement(self, table: Table, schema_id: int) -> str:
        known = self._statements.get((table.name, schema_id))
        if known is None:
            writer = self._codec.ids.schema_of(schema_id).source
            known = insert_statement(table, writer, newest(table.record).source)
            self._statements[table.name, schema_id] = known
        return known

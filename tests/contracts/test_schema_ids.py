"""What every source of schema ids must do: the lock file, the client's mock, a registry over HTTP."""

import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from tests.schemas.fake_registry import FakeRegistry
from tests.schemas.golden import examples

from headrace.schemas.codec import Codec
from headrace.schemas.errors import BadRecordError
from headrace.schemas.records import RECORDS
from headrace.schemas.registry import LockedIds, RegistryIds, SchemaIds
from headrace.schemas.topics import topic_name
from headrace.schemas.versions import newest

Connect = Callable[[], SchemaIds]
"""One more client of the same source, as another process would have."""


@pytest.fixture(params=["lock file", "client's mock", "http"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    if request.param == "lock file":
        yield LockedIds
        return
    with ExitStack() as stack:
        if request.param == "http":
            url = stack.enter_context(FakeRegistry()).url

            def over_http() -> SchemaIds:
                client = SchemaRegistryClient.new_client({"url": url, "max.retries": 0})
                stack.callback(client.close)
                return RegistryIds(client)

            yield over_http
        else:
            mock = stack.enter_context(SchemaRegistryClient.new_client({"url": "mock://"}))
            yield lambda: RegistryIds(mock)


def test_an_id_stays_the_same(connect: Connect) -> None:
    ids = connect()
    first = ids.id_for("Span", "spans")
    assert ids.id_for("Span", "spans") == first
    assert connect().id_for("Span", "spans") == first


def test_ids_of_records_are_distinct_and_fit_the_header(connect: Connect) -> None:
    ids = connect()
    found = {record: ids.id_for(record, f"{record}.v1") for record in RECORDS}
    assert len(set(found.values())) == len(RECORDS)
    assert all(0 < schema_id < 2**31 for schema_id in found.values())


def test_the_id_leads_back_to_the_schema(connect: Connect) -> None:
    written = {record: connect().id_for(record, f"{record}.v1") for record in RECORDS}
    ids = connect()
    for record, schema_id in written.items():
        schema = ids.schema_of(schema_id)
        assert schema.record == record
        # The very object: reading then needs no resolution of one schema into another.
        assert schema.parsed is newest(record).parsed


@pytest.mark.parametrize("schema_id", [0, 999_999, 2**31 - 1, 2**31, 2**32 - 1])
def test_an_unknown_id_is_a_bad_record(connect: Connect, schema_id: int) -> None:
    ids = connect()
    for _ in range(2):
        with pytest.raises(BadRecordError, match=f"know.* {schema_id}$"):
            ids.schema_of(schema_id)
    value = struct.pack(">bI", 0, schema_id)
    with pytest.raises(BadRecordError, match=str(schema_id)):
        Codec(ids).decode(value, RECORDS["Span"])


def test_what_one_process_writes_another_reads(connect: Connect) -> None:
    writer, reader = Codec(connect()), Codec(connect())
    for example in examples():
        record = example.model()
        value = writer.encode(record, topic_name(type(record), "headrace"))
        again = reader.decode(value, type(record))
        assert again.model_dump_json() == record.model_dump_json()

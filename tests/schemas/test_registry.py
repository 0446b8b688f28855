"""Ids from a registry: what it is asked, and what each of its failures means."""

import json
from collections.abc import Iterator

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from tests.schemas.builders import make_reward
from tests.schemas.fake_registry import FakeRegistry

from headrace.schemas.codec import Codec
from headrace.schemas.errors import BadRecordError, FatalError, HeadraceError, RetryableError
from headrace.schemas.records import Reward
from headrace.schemas.registry import RegistryIds
from headrace.schemas.versions import newest


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry() as started:
        yield started


@pytest.fixture
def ids(registry: FakeRegistry) -> Iterator[RegistryIds]:
    with SchemaRegistryClient.new_client({"url": registry.url, "max.retries": 0}) as client:
        yield RegistryIds(client)


def test_a_schema_is_registered_under_the_topic_s_name(registry: FakeRegistry, ids: RegistryIds) -> None:
    assert ids.id_for("Reward", "headrace.rewards.v1") == 1
    assert registry.requests == ["POST /subjects/headrace.rewards.v1-value/versions"]
    assert list(registry.subjects) == ["headrace.rewards.v1-value"]
    assert json.loads(registry.schemas[1]["schema"]) == newest("Reward").source


def test_each_answer_is_asked_for_once(registry: FakeRegistry, ids: RegistryIds) -> None:
    codec = Codec(ids)
    for value in (1.0, 2.0, 3.0):
        assert codec.decode(codec.encode(make_reward(value=value), "t"), Reward).value == value
    assert registry.requests == ["POST /subjects/t-value/versions", "GET /schemas/ids/1"]


def test_an_unknown_id_is_asked_for_again(registry: FakeRegistry, ids: RegistryIds) -> None:
    """It may be known by then."""
    with pytest.raises(BadRecordError, match="the schema registry does not know schema id 1"):
        ids.schema_of(1)
    registry.register("t-value", {"schema": json.dumps(newest("Reward").source)})
    assert ids.schema_of(1).record == "Reward"


@pytest.mark.parametrize("schema_id", [2**31, 2**32 - 1])
def test_an_id_that_no_registry_gives_is_not_asked_for(
    registry: FakeRegistry, ids: RegistryIds, schema_id: int
) -> None:
    with pytest.raises(BadRecordError, match=f"unknown schema id {schema_id}"):
        ids.schema_of(schema_id)
    assert registry.requests == []


@pytest.mark.parametrize(
    "schema",
    [
        {"schema": 'syntax = "proto3"; message Reward {}', "schemaType": "PROTOBUF"},
        {"schema": '{"type": "object", "title": "Reward"}', "schemaType": "JSON"},
        {"schema": '{"type": "object", "name": "Reward"}', "schemaType": "JSON"},
        {"schema": '"string"'},
        {"schema": '["null", "string"]'},
        {"schema": '{"type": "record", "name": "Reward", "fields": [{"name": "x", "type": "Elsewhere"}]}'},
        {"schema": "true"},
    ],
    ids=["protobuf", "json schema", "named json schema", "text", "union", "reference", "no schema"],
)
def test_a_schema_that_is_no_avro_record_is_a_bad_record(
    registry: FakeRegistry, ids: RegistryIds, schema: dict[str, str]
) -> None:
    registry.register("t-value", schema)
    with pytest.raises(BadRecordError, match="schema id 1 is not an Avro record that can be read"):
        Codec(ids).decode(b"\x00\x00\x00\x00\x01", Reward)


def test_another_s_record_of_the_same_name_is_a_bad_record(registry: FakeRegistry, ids: RegistryIds) -> None:
    fields = [{"name": "points", "type": "int"}]
    registry.register(
        "t-value", {"schema": json.dumps({"type": "record", "name": "Reward", "fields": fields})}
    )
    with pytest.raises(BadRecordError, match="the body does not read as Reward: SchemaResolutionError"):
        Codec(ids).decode(b"\x00\x00\x00\x00\x01\x02", Reward)


def test_a_record_of_another_name_is_a_bad_record(registry: FakeRegistry, ids: RegistryIds) -> None:
    registry.register("t-value", {"schema": json.dumps({"type": "record", "name": "Coupon", "fields": []})})
    with pytest.raises(BadRecordError, match="a record of type Coupon, where Reward is expected"):
        Codec(ids).decode(b"\x00\x00\x00\x00\x01", Reward)


FAULTS: dict[str, tuple[int, object, type[HeadraceError], str]] = {
    "500": (
        500,
        {"error_code": 50001, "message": "backend down"},
        RetryableError,
        "failed on .*backend down",
    ),
    "503 page": (503, b"<html>no</html>", RetryableError, "failed on"),
    "429": (429, {"error_code": 429, "message": "slow down"}, RetryableError, "failed on .*slow down"),
    "page instead": (200, b"<html>log in</html>", RetryableError, "can't be reached for .*JSONDecodeError"),
    "401": (401, {"error_code": 401, "message": "Unauthorized"}, FatalError, "refuses .*Unauthorized"),
    "409": (409, {"error_code": 409, "message": "incompatible"}, FatalError, "refuses .*incompatible"),
    "422": (422, {"error_code": 42201, "message": "invalid"}, FatalError, "refuses .*invalid"),
    "wrong path": (404, {"error_code": 404, "message": "HTTP 404 Not Found"}, FatalError, "refuses .*404"),
    "no registry": (404, b"<html>not here</html>", FatalError, "refuses .*not here"),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_what_a_failure_means(
    registry: FakeRegistry, ids: RegistryIds, fault: tuple[int, object, type[HeadraceError], str]
) -> None:
    """A failing registry must never send good records to the dead letters (G8)."""
    status, body, expected, message = fault
    registry.fault = lambda: (status, body)
    with pytest.raises(expected, match=message):
        ids.schema_of(1)
    with pytest.raises(expected, match=message):
        ids.id_for("Reward", "t")
    with pytest.raises(expected, match=message):
        Codec(ids).decode(b"\x00\x00\x00\x00\x01", Reward)


def test_it_works_again_after_an_outage(registry: FakeRegistry, ids: RegistryIds) -> None:
    codec = Codec(ids)
    registry.fault = lambda: (500, {"error_code": 50001, "message": "backend down"})
    with pytest.raises(RetryableError):
        codec.encode(make_reward(), "t")
    registry.fault = None
    value = codec.encode(make_reward(), "t")
    registry.fault = lambda: (500, {"error_code": 50001, "message": "backend down"})
    with pytest.raises(RetryableError):
        codec.decode(value, Reward)
    registry.fault = None
    assert codec.decode(value, Reward) == make_reward()


def test_a_refused_connection_is_retried(registry: FakeRegistry, ids: RegistryIds) -> None:
    registry.stop()
    with pytest.raises(RetryableError, match="can't be reached for schema id 1: ConnectError"):
        ids.schema_of(1)
    with pytest.raises(RetryableError, match="can't be reached for subject t-value: ConnectError"):
        ids.id_for("Reward", "t")


def test_what_is_known_needs_no_registry(registry: FakeRegistry, ids: RegistryIds) -> None:
    codec = Codec(ids)
    codec.decode(codec.encode(make_reward(), "t"), Reward)
    registry.stop()
    assert codec.decode(codec.encode(make_reward(value=2.0), "t"), Reward).value == 2.0

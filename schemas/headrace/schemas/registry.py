"""Where schema ids come from: the lock file, or a Confluent-compatible Schema Registry.

With a registry, a schema is registered under TopicNameStrategy (`<topic>-value`) when it is first
written, and unknown ids met in data are fetched from it.
"""

import json
from typing import Any, Protocol

import fastavro

from headrace.schemas.errors import BadRecordError, FatalError, RetryableError
from headrace.schemas.records import RECORDS
from headrace.schemas.records.base import INT32_MAX
from headrace.schemas.versions import newest, read_lock, versions


class WriterSchema:
    """A schema found in data, by its id: which record it is, as JSON, and in fastavro's form."""

    __slots__ = ("parsed", "record", "source")

    def __init__(self, record: str, source: Any, parsed: Any) -> None:  # noqa: ANN401  JSON; fastavro's own
        self.record = record
        self.source = source
        self.parsed = parsed


class SchemaIds(Protocol):
    """Maps records to ids when writing, and ids to schemas when reading.

    Both raise RetryableError while the registry can't be reached, and FatalError when it refuses.
    """

    def id_for(self, record: str, topic: str) -> int:
        """The id of the newest version of this record."""

    def schema_of(self, schema_id: int) -> WriterSchema:
        """BadRecordError if nobody knows the id, or it is not the id of an Avro schema."""


class LockedIds:
    """Ids from `ids.json`: the same on every machine that runs this version or a later one."""

    def __init__(self) -> None:
        lock = read_lock()
        self._ids: dict[str, int] = {}
        self._schemas: dict[int, WriterSchema] = {}
        for record in RECORDS:
            for version in versions(record):
                entry = lock.get(record, {}).get(str(version.version))
                if entry is None:
                    raise FatalError(f"{record} {version.version} has no id: run `headrace schemas lock`")
                self._ids[record] = entry["id"]
                self._schemas[entry["id"]] = WriterSchema(record, version.source, version.parsed)

    def id_for(self, record: str, topic: str) -> int:  # noqa: ARG002  ids don't depend on the topic here
        return self._ids[record]

    def schema_of(self, schema_id: int) -> WriterSchema:
        try:
            return self._schemas[schema_id]
        except KeyError:
            raise BadRecordError(f"unknown schema id {schema_id}") from None


class RegistryIds:
    """Ids from a registry, through confluent-kafka's client (extra: `schema-registry`); cached for good."""

    def __init__(self, client: Any) -> None:  # noqa: ANN401  confluent_kafka.schema_registry.SchemaRegistryClient
        self._client = client
        self._ids: dict[tuple[str, str], int] = {}
        self._schemas: dict[int, WriterSchema] = {}

    def id_for(self, record: str, topic: str) -> int:
        known = self._ids.get((record, topic))
        if known is not None:
            return known
        from confluent_kafka.schema_registry import Schema  # noqa: PLC0415  an extra

        schema = Schema(json.dumps(newest(record).source), "AVRO")
        subject = f"{topic}-value"
        schema_id = int(self._ask(f"subject {subject}", self._client.register_schema, subject, schema))
        self._ids[record, topic] = schema_id
        return schema_id

    def schema_of(self, schema_id: int) -> WriterSchema:
        known = self._schemas.get(schema_id)
        if known is not None:
            return known
        if schema_id > INT32_MAX:
            # Registries count in 32 bits with a sign, and answer a larger id as they do a wrong URL.
            raise BadRecordError(f"unknown schema id {schema_id}")
        found = _parse(schema_id, self._ask(f"schema id {schema_id}", self._client.get_schema, schema_id))
        self._schemas[schema_id] = found
        return found

    @staticmethod
    def _ask(what: str, call: Any, *arguments: Any) -> Any:  # noqa: ANN401
        from confluent_kafka.schema_registry import SchemaRegistryError  # noqa: PLC0415

        try:
            return call(*arguments)
        except SchemaRegistryError as error:
            if int(error.error_code or 0) // 100 == 404:
                # A code of its own (40403): a bare 404 is a wrong URL, and no word about the id.
                raise BadRecordError(f"the schema registry does not know {what}") from error
            if error.http_status_code in {408, 429} or error.http_status_code >= 500:
                raise RetryableError(f"the schema registry failed on {what}: {error}") from error
            raise FatalError(f"the schema registry refuses {what}: {error}") from error
        except Exception as error:
            # The client lets errors of its HTTP library through, and which one that is varies by version.
            raise RetryableError(
                f"the schema registry can't be reached for {what}: {type(error).__name__}: {error}"
            ) from error


def _parse(schema_id: int, schema: Any) -> WriterSchema:  # noqa: ANN401  confluent_kafka's Schema
    try:
        source = json.loads(schema.schema_str)
        record = str(source["name"])
        for version in versions(record) if record in RECORDS else ():
            if version.source == source:
                # The very object: the codec then reads without resolving one schema into another.
                return WriterSchema(record, version.source, version.parsed)
        return WriterSchema(record, source, fastavro.parse_schema(source))
    except Exception as error:  # noqa: BLE001  whatever JSON Schema or Protobuf makes of this
        raise BadRecordError(
            f"schema id {schema_id} is not an Avro record that can be read: {type(error).__name__}"
        ) from None

"""Where schema ids come from: the lock file, or a Confluent-compatible Schema Registry.

With a registry, a schema is registered under TopicNameStrategy (`<topic>-value`) when it is first
written, and unknown ids met in data are fetched from it.
"""

import json
from typing import Any, Protocol

import fastavro

from headrace.schemas.errors import BadRecordError, RetryableError
from headrace.schemas.versions import newest, read_lock, versions


class WriterSchema:
    """A schema found in data, by its id: which record it is, and fastavro's form of it."""

    __slots__ = ("parsed", "record")

    def __init__(self, record: str, parsed: Any) -> None:  # noqa: ANN401  fastavro's own
        self.record = record
        self.parsed = parsed


class SchemaIds(Protocol):
    """Maps records to ids when writing, and ids to schemas when reading."""

    def id_for(self, record: str, topic: str) -> int:
        """The id of the newest version of this record. RetryableError if the registry can't be reached."""

    def schema_of(self, schema_id: int) -> WriterSchema:
        """BadRecordError if nobody knows the id; RetryableError if the registry can't be reached."""


class LockedIds:
    """Ids from `ids.json`: the same on every machine that runs this version or a later one."""

    def __init__(self) -> None:
        lock = read_lock()
        self._ids = {record: entries[str(newest(record).version)]["id"] for record, entries in lock.items()}
        self._schemas = {
            entries[str(version.version)]["id"]: WriterSchema(record, version.parsed)
            for record, entries in lock.items()
            for version in versions(record)
        }

    def id_for(self, record: str, topic: str) -> int:  # noqa: ARG002  ids don't depend on the topic here
        return int(self._ids[record])

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
        schema_id = int(self._ask(self._client.register_schema, f"{topic}-value", schema))
        self._ids[record, topic] = schema_id
        return schema_id

    def schema_of(self, schema_id: int) -> WriterSchema:
        known = self._schemas.get(schema_id)
        if known is not None:
            return known
        source = json.loads(self._ask(self._client.get_schema, schema_id).schema_str)
        name = source.get("name", "?") if isinstance(source, dict) else "?"
        found = WriterSchema(name, fastavro.parse_schema(source))
        self._schemas[schema_id] = found
        return found

    @staticmethod
    def _ask(call: Any, *arguments: Any) -> Any:  # noqa: ANN401
        from confluent_kafka.schema_registry import SchemaRegistryError  # noqa: PLC0415

        try:
            return call(*arguments)
        except SchemaRegistryError as error:
            if error.http_status_code == 404:
                raise BadRecordError(f"the schema registry does not know {arguments[0]}") from error
            raise RetryableError(f"the schema registry failed on {arguments[0]}: {error}") from error
        except OSError as error:
            raise RetryableError(f"the schema registry can't be reached: {error}") from error

"""Records to bytes and back, in Confluent's framing: `0x00`, 4-byte schema id, Avro body.

Whatever is wrong with a record in the log becomes a BadRecordError: decode raises nothing else for bad
data. Bytes left over after the body are an error too, since a record that was cut and glued reads well.
"""

import io
import struct
from typing import Any, NamedTuple, TypeVar

import fastavro
from pydantic import ValidationError

from headrace.schemas.errors import BadRecordError, HeadraceError
from headrace.schemas.records import RECORDS, Record
from headrace.schemas.records.base import field_names
from headrace.schemas.registry import LockedIds, SchemaIds
from headrace.schemas.versions import newest

RecordT = TypeVar("RecordT", bound=Record)

MAGIC = 0
HEADER = struct.Struct(">bI")


class Framed(NamedTuple):
    """A record's bytes, taken apart and not yet decoded."""

    schema_id: int
    record: str
    body: bytes


class Codec:
    """Safe to share between threads."""

    def __init__(self, ids: SchemaIds | None = None) -> None:
        self.ids: SchemaIds = ids or LockedIds()
        self._writers: dict[tuple[type[Record], str], tuple[bytes, Any]] = {}

    def encode(self, record: Record, topic: str) -> bytes:
        """The record's bytes for this topic, in the newest version of its schema.

        BadRecordError for text that UTF-8 can't carry: half of a surrogate pair, as broken JSON has it.
        """
        known = self._writers.get((type(record), topic))
        if known is None:
            name = type(record).__name__
            known = HEADER.pack(MAGIC, self.ids.id_for(name, topic)), newest(name).parsed
            self._writers[type(record), topic] = known
        header, schema = known
        buffer = io.BytesIO()
        buffer.write(header)
        try:
            fastavro.schemaless_writer(buffer, schema, record.to_avro())
        except UnicodeEncodeError as error:
            # Without its cause, here and below: that holds the text, and texts are prompts.
            raise BadRecordError(
                f"the {type(record).__name__} holds text that is no Unicode: {error.reason}"
            ) from None
        return buffer.getvalue()

    def unframe(self, value: bytes | None, expected: str) -> Framed:
        """Check the framing and that the schema is one of the expected record's; the body stays as it is."""
        if value is None:
            raise BadRecordError("no value")
        if len(value) < HEADER.size:
            raise BadRecordError(f"{len(value)} bytes are too few for a header of {HEADER.size}")
        magic, schema_id = HEADER.unpack_from(value)
        if magic != MAGIC:
            raise BadRecordError(f"bad magic byte 0x{magic & 0xFF:02x}: not in Confluent's framing")
        name = self.ids.schema_of(schema_id).record
        if name != expected:
            raise BadRecordError(f"a record of type {name}, where {expected} is expected")
        return Framed(schema_id, name, value[HEADER.size :])

    def decode(self, value: bytes | None, expected: type[RecordT]) -> RecordT:
        """The record; BadRecordError for anything that is not one of the expected type, whole and valid."""
        framed = self.unframe(value, expected.__name__)
        values = self.read_body(framed)
        try:
            return expected.from_avro(values)
        except ValidationError as error:
            raise BadRecordError(describe(error)) from None

    def read_body(self, framed: Framed) -> dict[str, Any]:
        """The body's fields, as the newest version of its schema sees them; not yet validated."""
        writer = self.ids.schema_of(framed.schema_id).parsed
        reader = newest(framed.record).parsed
        stream = io.BytesIO(framed.body)
        try:
            values: Any = fastavro.schemaless_reader(stream, writer, None if writer is reader else reader)
        except HeadraceError:
            raise
        except Exception as error:  # noqa: BLE001  EOFError, IndexError, UnicodeDecodeError, OverflowError …
            # Its type alone: the message may quote the body, and bodies hold prompts.
            raise BadRecordError(
                f"the body does not read as {framed.record}: {type(error).__name__}"
            ) from None
        left = len(framed.body) - stream.tell()
        if left:
            raise BadRecordError(f"{left} bytes are left after the {framed.record}")
        if not isinstance(values, dict):
            raise BadRecordError(f"the schema is not a record but gave {type(values).__name__}")
        return values


def describe(error: ValidationError) -> str:
    """What is wrong, by field, without the values and the keys of maps: they may be prompts."""
    return "; ".join(
        f"{'.'.join(_place(part) for part in problem['loc']) or 'record'}: {problem['msg']}"
        for problem in error.errors(include_url=False, include_input=False, include_context=False)[:5]
    )


def _place(part: str | int) -> str:
    known = isinstance(part, int) or any(part in field_names(record) for record in RECORDS.values())
    return str(part) if known else "*"


def record_type(name: str) -> type[Record]:
    """The model of a record by its name."""
    return RECORDS[name]

"""A dead letter in words, and its bytes in hex. Prompts may be among them: they are shown when asked for."""

import orjson
from pydantic import ValidationError

from headrace.cli.cells import visible
from headrace.cli.dead_letter_log import Entry, Letter
from headrace.schemas.codec import HEADER, MAGIC, Codec
from headrace.schemas.errors import BadRecordError
from headrace.schemas.records import RECORDS, DeadLetter
from headrace.schemas.topics import topic_specs

MAX_DUMPED = 4096
_PER_LINE = 16


def hex_dump(data: bytes, limit: int | None = MAX_DUMPED) -> list[str]:
    """Sixteen bytes a line: offset, hex, and the printable of them; says what it leaves out."""
    lines = []
    shown = data if limit is None else data[:limit]
    for start in range(0, len(shown), _PER_LINE):
        part = shown[start : start + _PER_LINE]
        digits = f"{part[:8].hex(' ')}  {part[8:].hex(' ')}"
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in part)
        lines.append(f"{start:08x}  {digits:<48}  {text}")
    if len(shown) < len(data):
        lines.append(f"… {len(data) - len(shown):,} more bytes: --output FILE writes them all")
    return lines


def framing(value: bytes | None, codec: Codec) -> str:
    """What the first five bytes say: they hold no content."""
    if value is None:
        return "no value"
    size = f"{len(value):,} bytes"
    if len(value) < HEADER.size:
        return f"{size}, too few for Confluent's framing"
    magic, schema_id = HEADER.unpack_from(value)
    if magic != MAGIC:
        return f"{size}, not in Confluent's framing: first byte 0x{magic & 0xFF:02x}"
    try:
        return f"{size}, schema id {schema_id}: {codec.ids.schema_of(schema_id).record}"
    except BadRecordError as error:
        return f"{size}, {error}"


def decoded(dead: DeadLetter, codec: Codec) -> str:
    """The record as JSON, or as far as it can be read, or why it can't."""
    expected = next(
        (spec.record for spec in topic_specs().values() if dead.topic.endswith(spec.full_name(""))), None
    )
    if expected is None:
        return f"no record is declared for {dead.topic}"
    try:
        framed = codec.unframe(dead.value, expected)
        values = codec.read_body(framed)
    except BadRecordError as error:
        return f"does not decode: {error}"
    try:
        record = RECORDS[expected].from_avro(values)
    except ValidationError:
        options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
        text = orjson.dumps(values, default=repr, option=options).decode()
        return f"decodes, and is not valid:\n{text}"
    return orjson.dumps(record.model_dump(mode="json"), option=orjson.OPT_INDENT_2).decode()


def in_words(data: bytes | None) -> str:
    """Bytes as text where they are text, in hex where not: keys and headers."""
    if data is None:
        return "none"
    try:
        return visible(data.decode())
    except UnicodeDecodeError:
        return f"0x{data.hex()}"


def described(letter: Letter) -> dict[str, object]:
    """A letter for programs, without its value."""
    return {
        "topic": letter.place.topic,
        "partition": letter.place.partition,
        "offset": letter.place.offset,
        "bytes": letter.num_bytes,
        "dead_at": letter.first.at,
        "reason": letter.first.reason,
        "detail": letter.first.detail,
        "consumers": letter.consumers,
        "entries": [_described(entry) for entry in letter.entries],
        "replays": [_described(entry) for entry in letter.replays],
    }


def _described(entry: Entry) -> dict[str, object]:
    partition, offset = entry.position
    return {
        "consumer": entry.consumer,
        "reason": entry.reason,
        "detail": entry.detail,
        "at": entry.at,
        "dead_letter_partition": partition,
        "dead_letter_offset": offset,
    }

"""Only BadRecordError comes of bad bytes, and its message never holds what was in them."""

import io
import struct
import traceback
from collections.abc import Callable

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.schemas import strategies
from tests.schemas.builders import ATTEMPT_ID, REWARD_ID, ROLLOUT_ID, make_reward, make_span
from tests.schemas.golden import Example, examples

from headrace.schemas.codec import Codec
from headrace.schemas.errors import BadRecordError
from headrace.schemas.records import RECORDS, DeadLetter, Generation, Record, Reward, Span
from headrace.schemas.versions import newest

CODEC = Codec()
SECRET = "tell-no-one"  # noqa: S105  stands for a prompt
SPAN = make_span(
    name=SECRET,
    attributes={SECRET: SECRET},
    generation=Generation(request=SECRET, response=SECRET, sampling={SECRET: 0.5}),
)
SPAN_BYTES = CODEC.encode(SPAN, "spans")
REWARD_BYTES = CODEC.encode(make_reward(source=SECRET), "rewards")
FULL = [example for example in examples() if example.name == "full"]


def body_of(record: str, values: dict[str, object]) -> bytes:
    """Bytes with a right header and a body that no model vouches for."""
    header = struct.pack(">bI", 0, CODEC.ids.id_for(record, "t"))
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, newest(record).parsed, values)
    return header + bytes(stream.getvalue())


def refused(value: bytes | None, expected: type[Record]) -> str:
    """The message with which these bytes are refused; it and its traceback are free of the content."""
    with pytest.raises(BadRecordError) as caught:
        CODEC.decode(value, expected)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    return str(caught.value)


def test_the_framing_is_confluent_s_to_the_byte() -> None:
    """Put together by hand, after the Avro specification."""

    def text(value: str) -> bytes:
        return bytes([2 * len(value)]) + value.encode()

    value = CODEC.encode(make_reward(), "rewards")
    micros = 1_782_907_200_123_456
    zigzag, varint = 2 * micros, bytearray()
    while zigzag > 0x7F:
        varint.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    varint.append(zigzag)
    assert value == (
        b"\x00\x00\x00\x03\xee"
        + (text(ROLLOUT_ID) + text(ATTEMPT_ID) + b"\x00" + text("reward") + text(REWARD_ID))
        + (text("outcome") + struct.pack("<d", 1.0) + b"\x00" + text(""))
        + bytes(varint)
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "no value"),
        (b"", "0 bytes are too few for a header of 5"),
        (b"\x00\x00\x00\x03", "4 bytes are too few for a header of 5"),
        (b"\x01" + SPAN_BYTES[1:], "bad magic byte 0x01: not in Confluent's framing"),
        (b"\xff" + SPAN_BYTES[1:], "bad magic byte 0xff: not in Confluent's framing"),
        (b'{"rollout_id": "tell-no-one"}', "bad magic byte 0x7b: not in Confluent's framing"),
        (b"\x00\x00\x00\x00\x07" + SPAN_BYTES[5:], "unknown schema id 7"),
        (b"\x00\xff\xff\xff\xff" + SPAN_BYTES[5:], "unknown schema id 4294967295"),
        (REWARD_BYTES, "a record of type Reward, where Span is expected"),
        (SPAN_BYTES[:5], "the body does not read as Span: EOFError"),
        (SPAN_BYTES[:5] + REWARD_BYTES[5:], "the body does not read as Span: "),
        (SPAN_BYTES + b"\x00", "1 bytes are left after the Span"),
        (SPAN_BYTES + SPAN_BYTES, f"{len(SPAN_BYTES)} bytes are left after the Span"),
        (SPAN_BYTES[:6] + b"\xff" + SPAN_BYTES[7:], "the body does not read as Span: UnicodeDecodeError"),
    ],
    ids=[
        "none",
        "empty",
        "short",
        "magic",
        "negative magic",
        "json",
        "unknown id",
        "largest id",
        "other record",
        "no body",
        "other body",
        "a byte more",
        "glued",
        "not utf-8",
    ],
)
def test_bad_bytes(value: bytes | None, message: str) -> None:
    assert refused(value, Span).startswith(message)


@pytest.mark.parametrize("example", FULL, ids=str)
def test_truncated_at_every_length(example: Example) -> None:
    value = bytes.fromhex(example.hex)
    for length in range(len(value)):
        refused(value[:length], RECORDS[example.record])


@pytest.mark.parametrize("example", FULL, ids=str)
def test_trailing_bytes(example: Example) -> None:
    assert "1 bytes are left" in refused(bytes.fromhex(example.hex) + b"\x00", RECORDS[example.record])


@pytest.mark.parametrize("expected", RECORDS.values(), ids=RECORDS)
def test_no_record_passes_for_another(expected: type[Record]) -> None:
    for example in FULL:
        if example.record != expected.__name__:
            message = refused(bytes.fromhex(example.hex), expected)
            assert message == f"a record of type {example.record}, where {expected.__name__} is expected"


def reward_values(**fields: object) -> dict[str, object]:
    return make_reward(source=SECRET).to_avro() | fields


def span_values(**fields: object) -> dict[str, object]:
    return SPAN.to_avro() | fields


@pytest.mark.parametrize(
    ("record", "make", "fields", "message"),
    [
        (Reward, reward_values, {"value": float("nan")}, "value: Input should be a finite number"),
        (Reward, reward_values, {"value": float("inf")}, "value: Input should be a finite number"),
        (Reward, reward_values, {"kind": SECRET}, "kind: Input should be 'reward' or 'closed'"),
        (Reward, reward_values, {"reward_id": SECRET}, "reward_id: String should match pattern"),
        (
            Reward,
            reward_values,
            {"sequence_id": 0},
            "sequence_id: Input should be greater than or equal to 1",
        ),
        (Span, span_values, {"span_id": ""}, "span_id: String should have at least 1 character"),
        (Span, span_values, {"sequence_id": None}, "record: Value error, a span has a sequence_id"),
        (
            Span,
            span_values,
            {"generation": ("io.headrace.Generation", {"sampling": {SECRET: float("nan")}})},
            "generation.sampling.*: Input should be a finite number",
        ),
        (
            Span,
            span_values,
            {"generation": ("io.headrace.Generation", {"prompt_token_ids": [1, -1]})},
            "generation.prompt_token_ids.1: Input should be greater than or equal to 0",
        ),
    ],
    ids=[
        "NaN reward",
        "infinite reward",
        "unknown kind",
        "no UUIDv7",
        "sequence id 0",
        "span without id",
        "span without sequence id",
        "NaN setting",
        "negative token",
    ],
)
def test_avro_that_the_model_refuses(
    record: type[Record], make: Callable[..., dict[str, object]], fields: dict[str, object], message: str
) -> None:
    """C17: bad data from elsewhere is dead-lettered, with the field named."""
    assert refused(body_of(record.__name__, make(**fields)), record).startswith(message)


@pytest.mark.parametrize(
    "micros", [2**63 - 1, -(2**63), 253_402_300_800_000_000, -62_135_596_800_000_001], ids=str
)
def test_a_time_out_of_range(micros: int) -> None:
    values = reward_values() | {"time": micros}
    assert "does not read as Reward" in refused(body_of("Reward", values), Reward)


NUMBERS = [-1, -(2**63), 2**31, 2**40, 2**62, 2**63 - 1]


def zigzag(number: int) -> bytes:
    value, out = (number << 1) ^ (number >> 63), bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


@pytest.mark.parametrize("number", NUMBERS, ids=str)
def test_absurd_lengths_of_a_text(number: int) -> None:
    refused(SPAN_BYTES[:5] + zigzag(number) + SPAN_BYTES[6:], Span)


@pytest.mark.parametrize("number", [*NUMBERS, 1_000_000], ids=str)
def test_absurd_counts_of_a_list(number: int) -> None:
    """No memory is set aside for what is only announced."""
    letter = DeadLetter(consumer="c", topic="t", partition=0, offset=0, reason="r")
    value = CODEC.encode(letter, "t")
    tail = b"\x00\x02r\x00"
    assert value.endswith(tail)
    refused(value[: -len(tail)] + zigzag(number) + tail[1:], DeadLetter)


def test_an_endless_number() -> None:
    refused(SPAN_BYTES[:5] + b"\x80" * 1_000_000, Span)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), example=st.sampled_from(FULL))
def test_damaged_bytes_decode_or_are_refused(data: st.DataObject, example: Example) -> None:
    value = bytearray.fromhex(example.hex)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(5, len(value) - 1))
        value[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    decode_or_refuse(bytes(value), RECORDS[example.record])


@settings(max_examples=500, deadline=None)
@given(body=st.binary(max_size=200), record=st.sampled_from(list(RECORDS.values())), is_framed=st.booleans())
def test_any_bytes_decode_or_are_refused(body: bytes, record: type[Record], is_framed: bool) -> None:  # noqa: FBT001
    header = struct.pack(">bI", 0, CODEC.ids.id_for(record.__name__, "t")) if is_framed else b""
    decode_or_refuse(header + body, record)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(record=strategies.records, cut=st.floats(0, 1, exclude_max=True))
def test_any_record_cut_short_is_refused(record: Record, cut: float) -> None:
    value = CODEC.encode(record, "t")
    refused(value[: int(len(value) * cut)], type(record))


def decode_or_refuse(value: bytes, expected: type[Record]) -> None:
    try:
        record = CODEC.decode(value, expected)
    except BadRecordError:
        return
    # Whatever is let through is a record like any other.
    assert CODEC.decode(CODEC.encode(record, "t"), expected).model_dump_json() == record.model_dump_json()

from datetime import UTC, datetime, timedelta

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import CODEC, Attempt

from headrace.cli.dead_letter_log import Entry, Filter, Letter, Place
from headrace.cli.dead_letter_options import PlaceType, Since
from headrace.cli.dead_letter_replay import Headers, headers_of
from headrace.cli.dead_letter_view import decoded, framing, hex_dump, in_words
from headrace.schemas.records import DeadLetter, RecordHeader

SPAN = CODEC.encode(Attempt().call(1), "headrace.spans.v1")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def dead(value: bytes | None, topic: str = "headrace.spans.v1", **fields: object) -> DeadLetter:
    defaults: dict[str, object] = {"consumer": "sink", "partition": 1, "offset": 2, "reason": "bad_record"}
    return DeadLetter.model_validate({"topic": topic, "value": value} | defaults | fields)


def test_hex_dump() -> None:
    assert hex_dump(bytes(range(0x3A, 0x4C))) == [
        "00000000  3a 3b 3c 3d 3e 3f 40 41  42 43 44 45 46 47 48 49  :;<=>?@ABCDEFGHI",
        "00000010  4a 4b                                             JK",
    ]
    assert hex_dump(b"\x00\x1b\xff")[0].endswith("  ...")
    assert hex_dump(b"") == []
    assert hex_dump(bytes(5000))[-1] == "… 904 more bytes: --output FILE writes them all"


@given(st.binary(max_size=200))
def test_hex_dump_has_every_byte(data: bytes) -> None:
    digits = "".join(line[10:58].replace(" ", "") for line in hex_dump(data))
    assert bytes.fromhex(digits) == data


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "no value"),
        (b"\x00", "1 bytes, too few for Confluent's framing"),
        (b"secret prompt", "13 bytes, not in Confluent's framing: first byte 0x73"),
        (b"\x00\x7f\xff\xff\xffprompt", "11 bytes, unknown schema id 2147483647"),
    ],
)
def test_framing_shows_no_content(value: bytes | None, words: str) -> None:
    assert framing(value, CODEC) == words
    assert framing(SPAN, CODEC).endswith(": Span")


@pytest.mark.parametrize(
    ("letter", "words"),
    [
        (dead(SPAN), '"span_id": "'),
        (dead(SPAN[:-3]), "does not decode: "),
        (dead(None), "does not decode: no value"),
        (dead(SPAN, topic="other.rewards.v1"), "does not decode: a record of type Span"),
        (dead(SPAN, topic="notes.jsonl"), "no record is declared for notes.jsonl"),
    ],
    ids=["whole", "cut", "none", "wrong type", "file"],
)
def test_decoded(letter: DeadLetter, words: str) -> None:
    assert words in decoded(letter, CODEC)


def test_a_record_that_decodes_and_is_not_valid() -> None:
    span = Attempt().call(1)
    invalid = span.model_copy(update={"rollout_id": "not an id"})
    shown = decoded(dead(CODEC.encode(invalid, "headrace.spans.v1")), CODEC)
    assert shown.startswith("decodes, and is not valid:")
    assert '"rollout_id": "not an id"' in shown


@pytest.mark.parametrize(
    ("data", "words"), [(None, "none"), (b"key", "key"), (b"\x1b[2J", "\\x1b[2J"), (b"\xff\x00", "0xff00")]
)
def test_keys_and_headers_in_words(data: bytes | None, words: str) -> None:
    assert in_words(data) == words


@pytest.mark.parametrize(
    ("text", "place"),
    [("headrace.spans.v1:3:77", ("headrace.spans.v1", 3, 77)), ("C:/a:b.jsonl:0:1", ("C:/a:b.jsonl", 0, 1))],
)
def test_a_place_is_read_as_it_is_written(text: str, place: tuple[str, int, int]) -> None:
    assert Place.parse(text) == place
    assert str(Place(*place)) == text


@pytest.mark.parametrize("text", ["", "spans", "spans:1", "spans:a:1", "spans:-1:1", ":1:1"])
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(click.BadParameter, match="TOPIC:PARTITION:OFFSET"):
        PlaceType().convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-01T12:00:00", NOON),
        ("2026-01-01 13:00:00+01:00", NOON),
        ("2026-01-01T12:00:00Z", NOON),
        ("2026-01-01", NOON.replace(hour=0)),
    ],
)
def test_since_is_utc_unless_it_says_otherwise(text: str, moment: datetime) -> None:
    assert Since().convert(text, None, None) == moment


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        ("90s", timedelta(seconds=90)),
        ("15m", timedelta(minutes=15)),
        ("2h", timedelta(hours=2)),
        ("7d", timedelta(7)),
    ],
)
def test_since_is_ago(text: str, ago: timedelta) -> None:
    before = datetime.now(UTC)
    assert before - ago <= Since().convert(text, None, None) <= datetime.now(UTC) - ago


@pytest.mark.parametrize("text", ["yesterday", "5", "-1h", "99999999999999999d"])
def test_what_is_no_moment(text: str) -> None:
    with pytest.raises(click.BadParameter, match="neither like 15m"):
        Since().convert(text, None, None)


LETTER = Letter(
    Place("headrace.spans.v1", 0, 1),
    9,
    [Entry((0, 1), NOON, "assembler", "bad_record", ""), Entry((0, 2), NOON, "sink", "refused", "")],
)


@pytest.mark.parametrize(
    ("wanted", "matches"),
    [
        (Filter(), True),
        (Filter(topic="headrace.spans.v1"), True),
        (Filter(topic="headrace.rewards.v1"), False),
        (Filter(reason="refused"), True),
        (Filter(reason="refused", consumer="sink"), True),
        (Filter(reason="refused", consumer="assembler"), False),
        (Filter(since=NOON), True),
        (Filter(since=NOON + timedelta(seconds=1)), False),
    ],
)
def test_filters(wanted: Filter, matches: bool) -> None:  # noqa: FBT001
    assert wanted.matches(LETTER) is matches


def test_headers_may_repeat_and_say_whose_copy_it_is() -> None:
    headers = [("x", b"1"), ("headrace-replay-of", b"older:0:1"), ("x", b"2")]
    letter = dead(SPAN, headers=[RecordHeader(key=key, value=value) for key, value in headers])
    wanted = [("x", b"1"), ("x", b"2"), ("headrace-replay-of", b"headrace.spans.v1:1:2")]
    assert headers_of(letter) == wanted
    assert list(Headers(wanted).items()) == wanted
    assert bool(Headers(wanted))

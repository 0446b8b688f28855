import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.streams.ingest.lines import line, request, span, user

from headrace.schemas.errors import FatalError
from headrace.schemas.records import AttemptEvent, DeadLetter, Record, Span
from headrace.streams.ingest.bad_input import BadInputError
from headrace.streams.ingest.source import Format, Source, detect

CHAT = line([user("hi")])
OTHER_CHAT = line([user("ho")])
TRACES = json.dumps(request(span(1)))


def write(folder: Path, text: str | bytes, name: str = "file") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def split(source: Source) -> tuple[list[Record], list[BadInputError]]:
    items = list(source)
    bad = [item for item in items if isinstance(item, BadInputError)]
    return [item for item in items if not isinstance(item, BadInputError)], bad


def num_spans(records: list[Record]) -> int:
    return sum(isinstance(record, Span) for record in records)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(CHAT, "openai-chats", id="chats"),
        pytest.param(TRACES, "otlp", id="traces"),
        pytest.param('{"resource_spans":[]}', "otlp", id="traces in snake case"),
        pytest.param(json.dumps(json.loads(TRACES), indent=2), "otlp", id="one object over many lines"),
        pytest.param(
            "\n\n" + json.dumps(json.loads(CHAT), indent=1), "openai-chats", id="behind blank lines"
        ),
        pytest.param("{broken\n[]\n" + CHAT, "openai-chats", id="behind bad lines"),
        pytest.param("\ufeff" + CHAT, "openai-chats", id="behind a byte order mark"),
        pytest.param("", None, id="empty"),
        pytest.param(" \n\n", None, id="blank"),
    ],
)
def test_the_format_is_told_by_content(tmp_path: Path, text: str, expected: Format | None) -> None:
    assert detect(write(tmp_path, text)) == expected
    assert detect(write(tmp_path, gzip.compress(text.encode()))) == expected


@pytest.mark.parametrize("text", ['{"a":1}\n', "hello\n", "[]"])
def test_a_file_of_neither_format_stops_the_import_by_name(tmp_path: Path, text: str) -> None:
    with pytest.raises(FatalError, match="file has neither chat pairs"):
        list(Source([write(tmp_path, text)]))


@pytest.mark.parametrize("pack", [lambda data: data, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize(
    ("text", "num"),
    [
        pytest.param(f"{CHAT}\r\n\r\n{OTHER_CHAT}", 2, id="chats"),
        pytest.param(f"{TRACES}\n{json.dumps(request(span(2)))}\n", 2, id="traces"),
        pytest.param(json.dumps(json.loads(TRACES), indent=2), 1, id="one object"),
        pytest.param("\ufeff" + CHAT, 1, id="byte order mark"),
        pytest.param("", 0, id="empty"),
    ],
)
def test_files_are_read_packed_or_not_and_progress_adds_up(tmp_path: Path, text: str, num: int, pack) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    path = write(tmp_path, pack(text.encode()))
    heard: list[int] = []
    records, bad = split(Source([path], on_bytes=heard.append))
    assert bad == []
    assert num_spans(records) == num
    assert sum(heard) == path.stat().st_size


def test_a_bad_line_is_named_kept_and_passed_over_g8(tmp_path: Path) -> None:
    path = write(tmp_path, CHAT.encode() + b"\n{oops\n\xff\n" + OTHER_CHAT.encode())
    records, bad = split(Source([path]))
    assert num_spans(records) == 2
    assert [(error.line, error.reason) for error in bad] == [(2, "not_json"), (3, "not_utf8")]
    assert str(bad[0]).startswith(f"{path}:2: not_json: ")
    assert bad[0].dead_letter() == DeadLetter(
        consumer="ingest",
        topic=str(path),
        partition=0,
        offset=2,
        value=b"{oops",
        reason="not_json",
        detail=bad[0].detail,
    )


def test_a_bad_span_is_named_and_kept_alone(tmp_path: Path) -> None:
    broken = span(2, kind="no")
    path = write(tmp_path, TRACES + "\n" + json.dumps(request(span(3), broken)))
    records, (bad,) = split(Source([path]))
    assert num_spans(records) == 2
    letter = bad.dead_letter()
    assert (letter.offset, letter.partition) == (2, 2)
    assert letter.value is not None
    assert json.loads(letter.value) == broken
    assert str(bad).startswith(f"{path}:2 span 2: invalid: span.kind")


def test_a_bad_first_line_takes_no_other_with_it(tmp_path: Path) -> None:
    records, bad = split(Source([write(tmp_path, CHAT[:50] + "\n" + CHAT)]))
    assert (num_spans(records), [error.line for error in bad]) == (1, [1])


def test_a_gzip_file_that_is_cut_gives_what_it_has_and_says_so(tmp_path: Path) -> None:
    whole = "".join(line([user(f"{number:x}" * 40)]) + "\n" for number in range(3000))
    packed = gzip.compress(whole.encode())
    records, (bad,) = split(
        Source(
            [write(tmp_path, packed[: len(packed) // 2])],
        )
    )
    assert bad.reason == "bad_gzip"
    assert bad.line == num_spans(records) + 1 > 100


def test_a_trace_may_be_spread_over_files(tmp_path: Path) -> None:
    paths = [write(tmp_path, json.dumps(request(span(number))), str(number)) for number in (2, 1)]
    records, _ = split(Source(paths))
    assert [r.sequence_id for r in records if isinstance(r, Span)] == [1, 2]
    assert sum(isinstance(record, AttemptEvent) for record in records) == 2


def test_both_formats_in_one_import_and_repeats_are_counted(tmp_path: Path) -> None:
    source = Source([write(tmp_path, f"{CHAT}\n{CHAT}", "a"), write(tmp_path, f"{TRACES}\n{TRACES}", "b")])
    records, bad = split(source)
    assert bad == []
    assert num_spans(records) == 2
    assert source.num_repeated == 2


def test_lines_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, f"{CHAT}\n" + "x" * 100_000 + "\n" + OTHER_CHAT)
    items = iter(Source([path]))
    assert isinstance(next(items), Span)
    assert isinstance(next(items), BadInputError)


def test_a_named_format_is_not_guessed(tmp_path: Path) -> None:
    records, (bad,) = split(Source([write(tmp_path, CHAT)], file_format="otlp"))
    assert records == []
    assert bad.detail == "no resourceSpans"


def test_reading_needs_no_more_than_the_core() -> None:
    program = (
        "import sys, headrace.streams.ingest.source;"
        "heavy = {'faust', 'confluent_kafka', 'clickhouse_connect', 'rocksdict', 'torch', 'aiokafka'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

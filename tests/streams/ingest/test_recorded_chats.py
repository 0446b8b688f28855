"""Real exchanges through the whole conversion, and through the codec."""

import json
from pathlib import Path

from headrace.cli.ingest_commands import DEMO_FILES
from headrace.schemas.codec import Codec
from headrace.schemas.records import AttemptEvent, Record, Reward, Span
from headrace.streams.ingest.bad_input import BadInputError
from headrace.streams.ingest.source import Source
from headrace.streams.processors.progress import Progress


def read(*paths: Path) -> list[Record]:
    records: list[Record] = []
    for item in Source(paths):
        assert not isinstance(item, BadInputError), item
        records.append(item)
    return records


def spans_of(records: list[Record]) -> list[Span]:
    return [record for record in records if isinstance(record, Span)]


def assert_attempts_are_complete(records: list[Record]) -> None:
    """G2: each attempt starts once, ends once, and has each id from 1 to the last."""
    events = [record for record in records if isinstance(record, AttemptEvent)]
    attempts = {event.attempt_id for event in events}
    for attempt in attempts:
        started, ended = (event for event in events if event.attempt_id == attempt)
        assert (started.kind, ended.kind) == ("started", "ended")
        numbered = (record for record in records if isinstance(record, Span | Reward))
        ids = [record.sequence_id for record in numbered if record.attempt_id == attempt]
        assert ended.last_sequence_id is not None
        assert ids == list(range(1, ended.last_sequence_id + 1))
    assert {span.attempt_id for span in spans_of(records)} == attempts


def assert_round_trips(records: list[Record]) -> None:
    codec = Codec()
    for record in records:
        assert codec.decode(codec.encode(record, "topic"), type(record)) == record


def test_every_recorded_exchange_becomes_a_span_and_survives_the_codec(recorded_chats: Path) -> None:
    records = read(recorded_chats)
    assert len(spans_of(records)) == 32
    assert_attempts_are_complete(records)
    assert_round_trips(records)


def test_requests_and_responses_are_kept_verbatim(recorded_chats: Path) -> None:
    lines = recorded_chats.read_text().splitlines()
    for text, span in zip(lines, spans_of(read(recorded_chats)), strict=True):
        assert span.generation is not None
        assert span.generation.request in text
        assert span.generation.response in text
        assert json.loads(span.generation.request) == json.loads(text)["request"]
        assert json.loads(span.generation.response) == json.loads(text)["response"]


def test_calls_without_token_ids_are_kept_and_untrainable_g6(recorded_chats: Path) -> None:
    for span in spans_of(read(recorded_chats)):
        assert span.generation is not None
        assert span.generation.why_untrainable() == "no_token_ids"
        assert span.generation.response_token_ids == ()


def test_what_is_known_of_one_exchange_is_in_its_span(recorded_chats: Path) -> None:
    by_response = {span.attributes["gen_ai.response.id"]: span for span in spans_of(read(recorded_chats))}
    span = by_response["chatcmpl-BluaC6di5PtnbydBvXWvspLZ0w6hd"]
    assert span.name == "chat gpt-4.1-mini"
    assert span.kind == "client"
    assert span.start_time.isoformat() == "2025-06-24T09:50:20+00:00"
    assert span.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-4.1-mini",
        "gen_ai.response.model": "gpt-4.1-mini-2025-04-14",
        "gen_ai.response.id": "chatcmpl-BluaC6di5PtnbydBvXWvspLZ0w6hd",
        "gen_ai.response.finish_reasons": '["stop"]',
        "gen_ai.request.temperature": "0.7",
        "gen_ai.usage.input_tokens": "1376",
        "gen_ai.usage.output_tokens": "68",
        "gen_ai.usage.cache_read.input_tokens": "1280",
    }
    assert span.generation is not None
    assert span.generation.model == "gpt-4.1-mini-2025-04-14"
    assert (span.generation.prompt_tokens, span.generation.completion_tokens) == (1376, 68)
    assert span.generation.sampling == {"n": 1.0, "temperature": 0.7}
    assert span.generation.finish_reason == "stop"


def test_turns_of_a_conversation_are_one_attempt(recorded_chats: Path) -> None:
    turns: dict[str, list[int]] = {}
    for number, span in enumerate(spans_of(read(recorded_chats)), 1):
        turns.setdefault(span.attempt_id, []).append(number)
    assert [numbers for numbers in turns.values() if len(numbers) > 1] == [
        [10, 12],
        [11, 13],
        [17, 18],
        [20, 21],
        [26, 27],
        [31, 32],
    ]


def test_a_file_read_twice_says_the_same_g4(recorded_chats: Path, tmp_path: Path) -> None:
    copy = tmp_path / "another name.jsonl"
    copy.write_bytes(recorded_chats.read_bytes())
    assert read(recorded_chats) == read(copy)


def test_the_assembler_waits_for_nothing_after_an_imported_attempt() -> None:
    attempts: dict[str, Progress] = {}
    for offset, record in enumerate(read(*DEMO_FILES)):
        assert isinstance(record, AttemptEvent | Span | Reward)
        progress = attempts.setdefault(record.attempt_id, Progress(record.rollout_id, record.attempt_id))
        match record:
            case AttemptEvent():
                progress.add_event(offset, record)
            case Span():
                progress.add_span(offset, record)
            case Reward():
                progress.add_reward(offset, record)
    assert len(attempts) == 15
    assert all(progress.is_ready() and not progress.missing() for progress in attempts.values())
    assert sum(progress.outcome_offset() is not None for progress in attempts.values()) == 8


def test_demo_files_read_whole_and_the_same_each_time() -> None:
    records = read(*DEMO_FILES)
    assert [path.name for path in DEMO_FILES] == ["chats.jsonl", "trace.json", "traces.jsonl"]
    assert len([span for span in spans_of(records) if span.generation]) == 26
    assert sum(isinstance(record, Reward) for record in records) == 12
    agents = {span.generation.agent for span in spans_of(records) if span.generation}
    assert agents >= {"gatekeeper", "planner", "writer", "inspector", "clerk"}
    assert_attempts_are_complete(records)
    assert_round_trips(records)
    assert records == read(*DEMO_FILES)

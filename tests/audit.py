"""Accounts for every record of a stream: in Kafka, and as people see it through ClickHouse's views."""

from collections import Counter
from typing import Any

from clickhouse_connect.driver.client import Client
from confluent_kafka import Message as KafkaMessage
from tests.builders import CODEC
from tests.pipeline import Pipeline, payloads_of
from tests.stories import Message, Story, Stream, message_of

from headrace.schemas.errors import BadRecordError
from headrace.schemas.records import DeadLetter, Reward, Span, Trajectory
from headrace.streams.processors.dead_letters import TOO_LARGE


def audit(pipeline: Pipeline, stream: Stream, *, replayed: bool = False) -> dict[str, int]:
    """Assert that nothing is lost, doubled, changed or invented; return what was repeated on the way."""
    poison_at = check_sources(pipeline, stream)
    repeats = check_trajectories(pipeline, stream)
    check_dead_letters(pipeline, stream, poison_at)
    client = pipeline.client()
    try:
        check_attempts(client, stream)
        check_transitions(client, stream)
        check_spans(client, stream)
        check_rewards(client, stream)
        if not replayed:
            check_logs(client, pipeline)
    finally:
        client.close()
    return {"trajectories": repeats}


Place = tuple[str, int, int]


def published(stream: Stream) -> list[Message]:
    return [message for wave in [*stream.waves, (stream.late, [])] for part in wave for message in part]


def check_sources(pipeline: Pipeline, stream: Stream) -> dict[Place, KafkaMessage]:
    """What was published stands in Kafka as often as it was published; return where the poison is."""
    messages = published(stream)
    messages += [message for message in stream.poison if message not in messages]
    wanted = Counter((pipeline.topic(topic), key, value) for topic, key, value, _ in messages)
    bad = {(pipeline.topic(topic), key, value) for topic, key, value, _ in stream.poison}
    found: Counter[tuple[str, bytes | None, bytes | None]] = Counter()
    places: dict[Place, KafkaMessage] = {}
    for name in sorted({message.topic for message in messages}):
        for message in pipeline.read(name):
            identity = (message.topic() or "", message.key(), message.value())
            if identity in wanted:
                found[identity] += 1
            if identity in bad:
                places[message.topic() or "", message.partition() or 0, message.offset() or 0] = message
    assert found == wanted
    assert len(places) == len(stream.poison)
    return places


def check_trajectories(pipeline: Pipeline, stream: Stream) -> int:
    """G4: one verdict an attempt, exactly the expected one, and each repetition is the same bytes."""
    payloads = payloads_of(pipeline.read("trajectories"))
    assert payloads.keys() == {story.verdict.attempt_id for story in stream.stories}
    for story in stream.stories:
        (value,) = payloads[story.verdict.attempt_id]
        assert CODEC.decode(value, Trajectory) == story.verdict
    return sum(count.total() - 1 for count in payloads.values())


def check_dead_letters(pipeline: Pipeline, stream: Stream, poison_at: dict[Place, KafkaMessage]) -> None:
    """G8: each bad record once, with its bytes and headers, and nothing that was well."""
    for message in pipeline.read("dead-letters"):
        if (message.topic(), message.partition(), message.offset()) in poison_at:
            continue
        letter = CODEC.decode(message.value(), DeadLetter)
        original = poison_at[letter.topic, letter.partition, letter.offset]
        if letter.reason == TOO_LARGE:
            assert (original.value() or b"").startswith(letter.value or b"never")
            continue
        assert (letter.key_bytes, letter.value) == (original.key(), original.value())
        assert [(each.key, each.value) for each in letter.headers] == (original.headers() or [])
    client = pipeline.client()
    rows = client.query(
        "SELECT topic, partition, offset, consumers, key_bytes, value, reason FROM dead_letters",
        column_formats={"key_bytes": "bytes", "value": "bytes"},
    ).result_rows
    client.close()
    assert {(topic, partition, offset) for topic, partition, offset, *_ in rows} == poison_at.keys()
    assert len(rows) == len(poison_at)
    assembled = {pipeline.topic(name) for name in ("attempts", "spans", "rewards")}
    strays = {CODEC.encode(record, "any") for record in stream.strays}
    for topic, partition, offset, consumers, key, value, reason in rows:
        original = poison_at[topic, partition, offset]
        assert key == original.key()
        assert value == original.value() or reason == TOO_LARGE
        is_stray = value in strays and topic == pipeline.topic(message_of(_decoded(value)).topic)
        wanted = ["assembler"] if is_stray else ["assembler", "sink"] if topic in assembled else ["sink"]
        assert sorted(consumers) == wanted


def _decoded(value: bytes) -> Span | Reward:
    try:
        return CODEC.decode(value, Span)
    except BadRecordError:
        return CODEC.decode(value, Reward)


def check_attempts(client: Client, stream: Stream) -> None:
    rows = client.query(
        "SELECT attempt_id, status, state, reason, outcome, num_transitions, num_trainable, num_late_ends "
        "FROM attempts"
    ).result_rows
    assert sorted(rows) == sorted(_attempt_row(story) for story in stream.stories)
    rows = client.query(
        "SELECT attempt_id, accepted, reason, num_events, missing_sequence_ids, reward_ids FROM trajectories"
    ).result_rows
    wanted = [
        (v.attempt_id, v.accepted, v.reason, v.num_events, list(v.missing_sequence_ids), list(v.reward_ids))
        for v in (story.verdict for story in stream.stories)
    ]
    assert sorted(rows) == sorted(wanted)


def _attempt_row(story: Story) -> tuple[Any, ...]:
    verdict = story.verdict
    return (
        verdict.attempt_id,
        verdict.status,
        "accepted" if verdict.accepted else "rejected",
        verdict.reason,
        verdict.outcome,
        len(verdict.transitions),
        sum(transition.trainable for transition in verdict.transitions),
        story.num_late_ends,
    )


def check_transitions(client: Client, stream: Stream) -> None:
    """G5, G6: each transition once, ids and logprobs bit for bit."""
    rows = client.query(
        "SELECT attempt_id, step, sequence_id, span_id, accepted, prompt_token_ids, response_token_ids, "
        "response_logprobs, reward, rewards.reward_id, rewards.value, is_last, resource_version, trainable, "
        "reason FROM transitions"
    ).result_rows
    wanted = {}
    for story in stream.stories:
        verdict = story.verdict
        for prompt, t in zip(verdict.prompts(), verdict.transitions, strict=True):
            wanted[verdict.attempt_id, t.step] = (
                t.sequence_id,
                t.span_id,
                verdict.accepted,
                list(prompt),
                list(t.response_token_ids),
                [value.hex() for value in t.response_logprobs],
                t.reward,
                [given.reward_id for given in t.rewards],
                [given.value for given in t.rewards],
                t.is_last,
                t.resource_version,
                t.trainable,
                t.reason,
            )
    found = {
        (row[0], row[1]): (*row[2:5], *map(list, row[5:7]), [x.hex() for x in row[7]], *row[8:])
        for row in rows
    }
    assert len(rows) == len(found)
    assert found == wanted


def check_spans(client: Client, stream: Stream) -> None:
    late = {
        (story.verdict.attempt_id, span_id) for story in stream.stories for span_id in story.late_span_ids
    }
    wanted = {
        (record.attempt_id, record.sequence_id, record.span_id): (record.attempt_id, record.span_id) in late
        for records in [*(story.records() for story in stream.stories), stream.strays]
        for record in records
        if isinstance(record, Span)
    }
    rows = client.query("SELECT attempt_id, sequence_id, span_id, late FROM spans").result_rows
    assert len(rows) == len(wanted)
    assert {row[:3]: bool(row[3]) for row in rows} == wanted


def check_rewards(client: Client, stream: Stream) -> None:
    late = {reward_id for story in stream.stories for reward_id in story.late_reward_ids}
    wanted = {
        record.reward_id: (record.value, record.reward_id in late)
        for records in [*(story.records() for story in stream.stories), stream.strays]
        for record in records
        if isinstance(record, Reward)
    }
    rows = client.query("SELECT reward_id, value, late FROM rewards").result_rows
    assert len(rows) == len(wanted)
    assert {row[0]: (row[1], bool(row[2])) for row in rows} == wanted


def check_logs(client: Client, pipeline: Pipeline) -> None:
    """No place of the log is in its table twice, not even below the views."""
    for table in ("attempts_log", "spans_log", "rewards_log", "trajectories_log", "dead_letters_log"):
        rows, places = client.query(
            f"SELECT count(), uniqExact(kafka_partition, kafka_offset) FROM {table}"
        ).first_row
        assert rows == places, f"{table} of {pipeline.clickhouse.database}"

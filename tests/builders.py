"""Records for tests, with only what matters to the test spelled out."""

from datetime import UTC, datetime
from typing import Any

from headrace.schemas.codec import Codec
from headrace.schemas.ids import derived_uuid7
from headrace.schemas.records import AttemptEvent, AttemptOrigin, Generation, Record, Reward, Span
from headrace.schemas.topics import topic_name
from headrace.streams.processor import LogRecord

EPOCH_MS = 1_790_000_000_000
TIME = datetime.fromtimestamp(EPOCH_MS / 1000, UTC)
PREFIX = "headrace"
CODEC = Codec()


def an_id(*words: object) -> str:
    """The UUIDv7 of these words."""
    return derived_uuid7(EPOCH_MS, *map(str, words))


class Attempt:
    """Makes the events of one attempt."""

    def __init__(self, name: str = "a", **origin: Any) -> None:
        self.rollout_id = an_id("rollout", name)
        self.attempt_id = an_id("attempt", name)
        self.origin = AttemptOrigin(**({"group_id": f"group-{name}", "task_id": "task"} | origin))

    def started(self) -> AttemptEvent:
        return AttemptEvent(
            rollout_id=self.rollout_id,
            attempt_id=self.attempt_id,
            kind="started",
            status="running",
            origin=self.origin,
            time=TIME,
        )

    def ended(self, last: int | None, status: Any = "succeeded") -> AttemptEvent:
        return AttemptEvent(
            rollout_id=self.rollout_id,
            attempt_id=self.attempt_id,
            kind="ended",
            status=status,
            last_sequence_id=last,
            time=TIME,
        )

    def span(self, sequence_id: int | None, **fields: Any) -> Span:
        defaults: dict[str, Any] = {
            "rollout_id": self.rollout_id,
            "attempt_id": self.attempt_id,
            "sequence_id": sequence_id,
            "span_id": f"{self.attempt_id[-8:]}-{sequence_id}",
            "start_time": TIME,
            "end_time": TIME,
        }
        return Span(**(defaults | fields))

    def call(self, sequence_id: int, prompt: Any = (1, 2), response: Any = (3, 4), **fields: Any) -> Span:
        defaults: dict[str, Any] = {
            "model": "tiny",
            "prompt_token_ids": prompt,
            "response_token_ids": response,
            "response_logprobs": tuple(-0.5 - token / 8 for token in response),
            "completion_tokens": len(response),
        }
        generation = Generation(**(defaults | fields))
        return self.span(sequence_id, name="chat", kind="client", generation=generation)

    def reward(self, value: float = 1.0, sequence_id: int | None = None, **fields: Any) -> Reward:
        defaults: dict[str, Any] = {
            "rollout_id": self.rollout_id,
            "attempt_id": self.attempt_id,
            "sequence_id": sequence_id,
            "reward_id": an_id(self.attempt_id, value, sequence_id, sorted(fields.items())),
            "value": value,
            "time": TIME,
        }
        return Reward(**(defaults | fields))

    def closing(self) -> list[Record]:
        return [self.span(None, kind="closed"), self.reward(0.0, kind="closed")]


def logged(records: list[Record], *, partition: int = 0, prefix: str = PREFIX) -> list[LogRecord]:
    """The records as a log holds them: each topic numbers its own, in the order given."""
    next_offset: dict[str, int] = {}
    out = []
    for record in records:
        topic = topic_name(type(record), prefix)
        offset = next_offset.get(topic, 0)
        next_offset[topic] = offset + 1
        value = CODEC.encode(record, topic)
        out.append(LogRecord(topic, partition, offset, EPOCH_MS, record.key, value))
    return out

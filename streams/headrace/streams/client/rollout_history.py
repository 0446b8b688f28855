"""What the topics tell of rollouts up to now: of all that are recent, or of one from its beginning."""

from collections.abc import Iterator
from typing import NamedTuple

from headrace.schemas.codec import Codec
from headrace.schemas.errors import BadRecordError
from headrace.schemas.ids import uuid7_time_ms
from headrace.schemas.records import RolloutCommand, RolloutState
from headrace.schemas.topics import topic_name
from headrace.streams.client.partitions import partition_of
from headrace.streams.client.rollout_log import CLOCK_SLACK_MS
from headrace.streams.client.rollout_watch import newer, queuing_state
from headrace.streams.client.tail import Place, Tail, Tailed
from headrace.streams.settings import KafkaSettings


class RolloutHistory(NamedTuple):
    """Commands in the order of the log, states in that of the rollout's life, each once."""

    commands: tuple[RolloutCommand, ...]
    states: tuple[RolloutState, ...]

    @property
    def enqueued(self) -> RolloutCommand | None:
        """The first enqueue command is the one that counts; None if it is past the topic's retention."""
        return next((command for command in self.commands if command.kind == "enqueue"), None)


def scan_rollouts(settings: KafkaSettings, codec: Codec, *, since_ms: int = 0) -> dict[str, RolloutState]:
    """The newest state by id of every rollout that was enqueued or has changed since then."""
    found: dict[str, RolloutState] = {}
    with Tail(settings, name="rollout-list") as tail:
        for record in _since(tail, topic_name(RolloutState, settings.topic_prefix), since_ms):
            try:
                state = codec.decode(record.value, RolloutState)
            except BadRecordError:
                continue
            if newer(found.get(state.rollout_id), state):
                found[state.rollout_id] = state
        for record in _since(tail, topic_name(RolloutCommand, settings.topic_prefix), since_ms):
            # Commands hold whole tasks: only those that have no state yet are worth decoding.
            if (record.key or b"").decode(errors="replace") in found:
                continue
            try:
                command = codec.decode(record.value, RolloutCommand)
            except BadRecordError:
                continue
            if command.kind == "enqueue":
                found.setdefault(command.rollout_id, queuing_state(command))
    return found


def read_history(settings: KafkaSettings, codec: Codec, rollout_id: str) -> RolloutHistory:
    """Everything of one rollout; empty if the topics know nothing of it."""
    key = rollout_id.encode()
    since_ms = uuid7_time_ms(rollout_id) - CLOCK_SLACK_MS
    commands: list[RolloutCommand] = []
    states: dict[int, RolloutState] = {}
    with Tail(settings, name="rollout-history") as tail:
        for record in _of(tail, topic_name(RolloutCommand, settings.topic_prefix), key, since_ms):
            try:
                command = codec.decode(record.value, RolloutCommand)
            except BadRecordError:
                continue
            if command not in commands:
                commands.append(command)
        for record in _of(tail, topic_name(RolloutState, settings.topic_prefix), key, since_ms):
            try:
                state = codec.decode(record.value, RolloutState)
            except BadRecordError:
                continue
            states.setdefault(state.revision, state)
    return RolloutHistory(tuple(commands), tuple(states[revision] for revision in sorted(states)))


def _since(tail: Tail, topic: str, since_ms: int) -> Iterator[Tailed]:
    places = tail.places(topic)
    ends = tail.ends(places)
    yield from tail.read(tail.offsets_at(dict.fromkeys(places, since_ms)), ends)


def _of(tail: Tail, topic: str, key: bytes, since_ms: int) -> Iterator[Tailed]:
    place = Place(topic, partition_of(key, tail.num_partitions(topic)))
    ends = tail.ends([place])
    for record in tail.read(tail.offsets_at({place: since_ms}), ends):
        if record.key == key:
            yield record

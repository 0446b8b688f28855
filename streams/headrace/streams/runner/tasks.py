"""TaskSource: tasks from Kafka, no more than there are free slots, in a thread of its own.

An offset is committed when its task and all before it are started, which the log then knows: a crash before
gives the task to another runner, and the log decides between the two; what a runner dies with after that
comes back through the dispatcher's deadlines.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from headrace.schemas.codec import Codec
from headrace.schemas.errors import BadRecordError, HeadraceError
from headrace.schemas.records import AttemptTask, DeadLetter
from headrace.schemas.topics import topic_name
from headrace.streams.processor import LogRecord
from headrace.streams.processors.dead_letters import KEY_MISMATCH, dead_letter
from headrace.streams.runner.errors import RunnerFailedError
from headrace.streams.runner.outlet import Outlet
from headrace.streams.runner.started_offsets import StartedOffsets
from headrace.streams.settings import KafkaSettings

GROUP = "runners"
"""Of the consumer group, behind the prefix."""

_COMMIT_EVERY_S = 0.05
_POLL_S = 0.25
_FULL_S = 0.5
"""With all slots taken for so long, fetching is paused: below that, pausing costs more than it saves."""
_REVOKE_S = 3.0
_REFUSED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,  # noqa: SLF001  so it is named
    }
)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TakenTask:
    """`started` is called, from any thread, when the log has its start, or when it needs none."""

    task: AttemptTask
    started: Callable[[], None]


class TaskSource:
    """`start`, then `release` for each slot that comes free; `stop` takes no more, commits and leaves."""

    def __init__(
        self,
        kafka: KafkaSettings,
        codec: Codec,
        outlet: Outlet,
        *,
        num_slots: int,
        session_timeout_s: float,
        deliver: Callable[[Sequence[TakenTask]], None],
        failed: Callable[[HeadraceError], None],
    ) -> None:
        self._kafka = kafka
        self._codec = codec
        self._outlet = outlet
        self._deliver = deliver
        self._failed = failed
        self._session_timeout_s = session_timeout_s
        self._topic = topic_name(AttemptTask, kafka.topic_prefix)
        self._dead_letters = topic_name(DeadLetter, kafka.topic_prefix)
        self._offsets = StartedOffsets()
        self._committed: dict[int, int] = {}
        self._backlog: deque[Message] = deque()
        self._slots = threading.Condition()
        self._num_free = num_slots
        self._is_stopping = False
        self._is_paused = False
        self._full_since: float | None = None
        self._next_commit = 0.0
        self._thread = threading.Thread(target=self._run, name="headrace-tasks", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def release(self) -> None:
        """A slot is free again."""
        with self._slots:
            self._num_free += 1
            self._slots.notify_all()

    def stop(self) -> None:
        """Take no more tasks; returns at once."""
        with self._slots:
            self._is_stopping = True
            self._slots.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Whether it has left the group within that time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # --- the thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            consumer = self._consumer()
            try:
                consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked)
                while not self._is_stopping:
                    self._step(consumer)
                self._offsets.wait(self._offsets.committable(), _REVOKE_S)
                self._commit(consumer, wait=True)
            finally:
                consumer.close()
        except HeadraceError as error:
            self._failed(error)
        except Exception as error:  # noqa: BLE001  a thread that dies silently would leave a runner that idles
            self._failed(RunnerFailedError(f"reading {self._topic} failed: {type(error).__name__}: {error}"))

    def _consumer(self) -> Consumer:
        session_ms = int(self._session_timeout_s * 1000)
        return Consumer(
            {
                "client.id": "headrace-runner",
                "group.id": f"{self._kafka.topic_prefix}-{GROUP}",
                "log_level": 2,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "earliest",
                # Runners that come and go do not stop the others.
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": session_ms,
                "heartbeat.interval.ms": max(session_ms // 4, 100),
                "queued.min.messages": 200,
                "queued.max.messages.kbytes": 32 * 1024,
                "fetch.message.max.bytes": 16 * 1024 * 1024,
                "on_commit": self._on_commit,
            }
            | self._kafka.librdkafka()
        )

    def _step(self, consumer: Consumer) -> None:
        self._commit_if_due(consumer)
        num_free = self._wait_for_slot()
        if self._is_stopping:
            return
        if not num_free:
            self._rest(consumer)
            return
        if self._is_paused:
            consumer.resume(consumer.assignment())
            self._is_paused = False
        if not self._backlog:
            self._keep(consumer.poll(_COMMIT_EVERY_S if self._has_to_commit() else _POLL_S))
        if self._backlog and len(self._backlog) < num_free:
            for message in consumer.consume(num_free - len(self._backlog), timeout=0):
                self._keep(message)
        self._hand_over(num_free)

    def _wait_for_slot(self) -> int:
        """How many are free, after a wait for the first."""
        wait_s = _COMMIT_EVERY_S if self._has_to_commit() else _FULL_S
        with self._slots:
            self._slots.wait_for(lambda: self._num_free > 0 or self._is_stopping, wait_s)
            if self._num_free > 0:
                self._full_since = None
            elif self._full_since is None:
                self._full_since = time.monotonic()
            return self._num_free

    def _rest(self, consumer: Consumer) -> None:
        """Stay in the group while every slot is taken."""
        is_long = self._full_since is not None and time.monotonic() - self._full_since >= _FULL_S
        if is_long and not self._is_paused:
            consumer.pause(consumer.assignment())
            self._is_paused = True
        if self._is_paused:
            self._keep(consumer.poll(0))

    def _keep(self, message: Message | None) -> None:
        if message is None:
            return
        error = message.error()
        if error is None:
            self._backlog.append(message)
        elif error.fatal() or error.code() in _REFUSED:
            raise RunnerFailedError(f"Kafka refuses to let us read {self._topic}: {error.str()}")
        else:
            # The client tries again by itself.
            log.debug("kafka", error=error.str())

    def _hand_over(self, num_free: int) -> None:
        taken: list[TakenTask] = []
        while self._backlog and len(taken) < num_free:
            message = self._backlog.popleft()
            partition, offset = message.partition() or 0, message.offset() or 0
            self._offsets.take(partition, offset)
            task = self._read(message)
            if task is not None:
                taken.append(TakenTask(task, self._starter(partition, offset)))
        if taken:
            with self._slots:
                self._num_free -= len(taken)
            self._deliver(taken)

    def _starter(self, partition: int, offset: int) -> Callable[[], None]:
        return lambda: self._offsets.start(partition, offset)

    def _read(self, message: Message) -> AttemptTask | None:
        """The task; one that is none goes to dead-letters, and its offset may be committed after (G8)."""
        try:
            task = self._codec.decode(message.value(), AttemptTask)
            if message.key() != task.key:
                raise BadRecordError(f"the key is not rollout {task.rollout_id}", reason=KEY_MISMATCH)  # noqa: TRY301
        except BadRecordError as error:
            self._bury(message, error)
            return None
        return task

    def _bury(self, message: Message, error: BadRecordError) -> None:
        partition, offset = message.partition() or 0, message.offset() or 0
        record = LogRecord(
            self._topic,
            partition,
            offset,
            message.timestamp()[1],
            message.key(),
            message.value(),
            tuple(message.headers() or ()),
        )

        def delivered(why_not: str | None) -> None:
            if why_not is None:
                self._offsets.start(partition, offset)
            else:
                self._failed(RunnerFailedError(f"{self._dead_letters} takes nothing: {why_not}"))

        self._outlet.publish(dead_letter("runner", record, error.reason, str(error)), delivered)
        log.warning("bad task", partition=partition, offset=offset, reason=error.reason)

    # --- offsets and the group -----------------------------------------------------------------------

    def _due(self) -> dict[int, int]:
        return {
            p: offset for p, offset in self._offsets.committable().items() if self._committed.get(p) != offset
        }

    def _has_to_commit(self) -> bool:
        """Something is started, or soon will be, that is not committed."""
        return bool(self._due())

    def _commit_if_due(self, consumer: Consumer) -> None:
        now = time.monotonic()
        if now >= self._next_commit:
            self._next_commit = now + _COMMIT_EVERY_S
            self._commit(consumer, wait=False)

    def _commit(self, consumer: Consumer, *, wait: bool) -> None:
        due = self._due()
        if not due:
            return
        places = [TopicPartition(self._topic, partition, offset) for partition, offset in due.items()]
        try:
            if wait:
                consumer.commit(offsets=places, asynchronous=False)
            else:
                consumer.commit(offsets=places, asynchronous=True)
        except KafkaException as error:
            # Whoever gets these tasks again starts attempts that the log sets aside.
            log.warning("offsets not committed", error=error.args[0].str())
            return
        self._committed |= due

    def _on_commit(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        if error is not None:
            log.warning("offsets not committed", error=error.str())
            for place in places:
                self._committed.pop(place.partition, None)

    def _assigned(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        consumer.incremental_assign(places)
        # A pause outlives the partition's absence in the client.
        if places and self._is_paused:
            consumer.pause(places)
        elif places:
            consumer.resume(places)
        log.info("partitions assigned", partitions=sorted(place.partition for place in places))

    def _revoked(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        partitions = {place.partition for place in places}
        self._backlog = deque(message for message in self._backlog if message.partition() not in partitions)
        # What is being started is so in a moment; committed, nobody else starts it again.
        self._offsets.wait(partitions, _REVOKE_S)
        self._commit(consumer, wait=True)
        self._offsets.forget(partitions)
        for partition in partitions:
            self._committed.pop(partition, None)
        consumer.incremental_unassign(places)
        log.info("partitions revoked", partitions=sorted(partitions))

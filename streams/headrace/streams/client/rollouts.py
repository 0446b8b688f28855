"""Client: hand over tasks, wait for what became of them, cancel them.

What returns from `enqueue` and `cancel` is acknowledged by Kafka. Answers about rollouts come from the topics
themselves, right at once after a write; each rollout counts once, by its id, however often it was tried (C2).
"""

import json
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import NamedTuple, Self, TypeAlias

from confluent_kafka import KafkaError, Message
from pydantic import ValidationError

from headrace.schemas.codec import Codec, describe
from headrace.schemas.errors import BadRecordError
from headrace.schemas.ids import uuid7
from headrace.schemas.records import RolloutCommand, RolloutConfig, RolloutState, now
from headrace.schemas.records.rollout import Mode
from headrace.schemas.topics import topic_name
from headrace.streams.client.errors import DeliveryError, KafkaUnavailableError, PublisherFullError
from headrace.streams.client.publisher import MAX_RECORD_BYTES, Publisher
from headrace.streams.client.rollout_errors import (
    BadRolloutIdError,
    BadTaskError,
    NotEnqueuedError,
    UnknownRolloutError,
    WaitTimeoutError,
)
from headrace.streams.client.rollout_log import RolloutLog
from headrace.streams.client.rollout_watch import Watch
from headrace.streams.processors.credit import credit_rule
from headrace.streams.settings import KafkaSettings

JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"
ANSWER_S = 60.0

_ROLLOUT_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


class EnqueuedRollout(NamedTuple):
    """A rollout that Kafka has; `task_index` is its task's place among those given."""

    rollout_id: str
    group_id: str
    task_id: str
    task_index: int


RolloutRef = str | EnqueuedRollout


class Client:
    """Safe to share between threads. Use it as a context manager, or call `close`."""

    def __init__(
        self, settings: KafkaSettings | None = None, *, codec: Codec | None = None, linger_ms: float = 5.0
    ) -> None:
        self.settings = settings or KafkaSettings()
        self.codec = codec or Codec()
        self.publisher = Publisher(self.settings, codec=self.codec, linger_ms=linger_ms)
        self.log = RolloutLog(self.settings, self.codec)
        self._topic = topic_name(RolloutCommand, self.settings.topic_prefix)

    def enqueue(
        self,
        tasks: Iterable[JSON],
        *,
        mode: Mode = "train",
        num_samples: int = 1,
        config: RolloutConfig | None = None,
        resources: Mapping[str, int] | None = None,
        metadata: Mapping[str, str] | None = None,
        task_ids: Sequence[str] | None = None,
    ) -> list[EnqueuedRollout]:
        """Hand over tasks, each to be run `num_samples` times as one group; returns once Kafka has them all.

        Rollouts come in the order of tasks. `resources` pins versions by name. BadTaskError for what can't be
        a task, before any is handed over; NotEnqueuedError where Kafka did not acknowledge them all.
        """
        try:
            common = RolloutCommand(
                kind="enqueue",
                rollout_id=uuid7(),
                group_id="-",
                group_size=num_samples,
                mode=mode,
                config=config or RolloutConfig(),
                resources=dict(resources or {}),
                metadata=dict(metadata or {}),
                time=now(),
            )
        except ValidationError as error:
            raise BadTaskError(describe(error)) from None
        try:
            credit_rule(common.config.credit_rule)
        except BadRecordError as error:
            raise BadTaskError(str(error)) from None
        texts = [task_text(task, index) for index, task in enumerate(tasks)]
        names = list(task_ids) if task_ids is not None else [""] * len(texts)
        if len(names) != len(texts):
            raise BadTaskError(f"{len(texts)} tasks and {len(names)} task ids")
        commands: list[RolloutCommand] = []
        enqueued: list[EnqueuedRollout] = []
        for index, (text, name) in enumerate(zip(texts, names, strict=True)):
            self._check_size(common.model_copy(update={"task": text, "task_id": name}), index)
            group_id = uuid7() if num_samples > 1 else ""
            for _ in range(num_samples):
                rollout_id = uuid7()
                each = EnqueuedRollout(rollout_id, group_id or rollout_id, name, index)
                fields = {"rollout_id": rollout_id, "group_id": each.group_id, "task_id": name, "task": text}
                # Checked above; a million validations more would tell nothing new.
                commands.append(common.model_copy(update=fields))
                enqueued.append(each)
        if commands:
            self.log.mark((each.rollout_id for each in enqueued), self.log.recent_ends())
            self.submit(commands)
        return enqueued

    def submit(self, commands: Sequence[RolloutCommand]) -> None:
        """Publish commands as they are, and return once Kafka has them all; NotEnqueuedError says which not.

        A command that is there already changes nothing: of one rollout's enqueue commands the first counts.
        """
        failed: dict[int, str] = {}
        left = set(range(len(commands)))

        def settle(index: int, error: KafkaError | None, _: Message) -> None:
            left.discard(index)
            if error is not None:
                failed[index] = error.str()

        why = ""
        try:
            for index, command in enumerate(commands):
                self.publisher.publish(command, on_delivery=partial(settle, index))
            self.publisher.flush()
        except (DeliveryError, PublisherFullError) as error:
            why = str(error)
        missing = sorted(left | set(failed))
        if missing:
            words = "; ".join(sorted(set(failed.values()))) or why
            raise NotEnqueuedError(
                [commands[index] for index in missing], len(commands) - len(missing), words
            )

    def cancel(self, rollouts: Iterable[RolloutRef]) -> None:
        """Ask that these rollouts end as cancelled; returns once Kafka has the commands.

        One that is final stays as it is: `wait` says how each ended.
        """
        time = now()
        self.submit(
            [
                RolloutCommand(kind="cancel", rollout_id=rollout_id, group_id=rollout_id, time=time)
                for rollout_id in checked_ids(rollouts)
            ]
        )

    def status(
        self, rollouts: Iterable[RolloutRef], *, timeout_s: float = ANSWER_S
    ) -> dict[str, RolloutState | None]:
        """The state of each rollout by id, as the topics have it now; None where they know nothing of it."""
        rollout_ids = checked_ids(rollouts)
        if not rollout_ids:
            return {}
        changed = threading.Event()
        watch = self.log.watch(rollout_ids, changed.set)
        deadline = time.monotonic() + timeout_s
        try:
            while not watch.is_caught_up():
                if not changed.wait(max(deadline - time.monotonic(), 0.0)):
                    raise self.no_answer(timeout_s)
                changed.clear()
            return dict(watch.states())
        finally:
            self.log.release(watch)

    def wait(
        self, rollouts: Iterable[RolloutRef], *, timeout_s: float | None = None
    ) -> Iterator[RolloutState]:
        """Final states as they come, each rollout exactly once; ends when all are final.

        WaitTimeoutError says which are not, and in what state they are. UnknownRolloutError, as soon as the
        topics are read, for ids that they know nothing of.
        """
        for state in self.follow(rollouts, timeout_s=timeout_s):
            if state.is_final:
                yield state

    def follow(
        self, rollouts: Iterable[RolloutRef], *, timeout_s: float | None = None
    ) -> Iterator[RolloutState]:
        """As `wait`, with the states on the way there: of each rollout the newest that it has when asked."""
        rollout_ids = checked_ids(rollouts)
        if not rollout_ids:
            return
        changed = threading.Event()
        watch = self.log.watch(rollout_ids, changed.set)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            while True:
                changed.clear()
                # Asked first: what comes in between is in what is drained.
                over = is_over(watch)
                yield from watch.drain()
                if over:
                    return
                left_s = None if deadline is None else max(deadline - time.monotonic(), 0.0)
                if not changed.wait(left_s):
                    raise timed_out(watch, timeout_s or 0.0)
        finally:
            self.log.release(watch)

    def wait_all(
        self, rollouts: Iterable[RolloutRef], *, timeout_s: float | None = None
    ) -> dict[str, RolloutState]:
        """The final state of each rollout by id, in the order asked. Errors as `wait`."""
        rollout_ids = checked_ids(rollouts)
        final = {state.rollout_id: state for state in self.wait(rollout_ids, timeout_s=timeout_s)}
        return {rollout_id: final[rollout_id] for rollout_id in rollout_ids}

    def close(self) -> None:
        """End what waits, and flush. The client must not be used after."""
        try:
            self.log.close()
        finally:
            self.publisher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def no_answer(self, timeout_s: float) -> KafkaUnavailableError:
        return KafkaUnavailableError(
            f"the states of rollouts could not be read from Kafka at {self.settings.bootstrap_servers} "
            f"within {timeout_s:g} s"
        )

    def _check_size(self, command: RolloutCommand, index: int) -> None:
        num_bytes = len(self.codec.encode(command, self._topic))
        if num_bytes > MAX_RECORD_BYTES:
            raise BadTaskError(f"task {index} takes {num_bytes} bytes: the limit is {MAX_RECORD_BYTES}")


def checked_ids(rollouts: Iterable[RolloutRef]) -> list[str]:
    """The ids, each once. BadRolloutIdError for what can't be one."""
    ids = dict.fromkeys(each if isinstance(each, str) else each.rollout_id for each in rollouts)
    for rollout_id in ids:
        if not _ROLLOUT_ID.fullmatch(rollout_id):
            raise BadRolloutIdError(
                f"{rollout_id[:100]!r} is not the id of a rollout: they are UUIDs of version 7"
            )
    return list(ids)


def is_over(watch: Watch) -> bool:
    """Whether there is nothing more to wait for; UnknownRolloutError if there never will be."""
    if watch.is_finished:
        return True
    if watch.is_caught_up():
        unknown = [rollout_id for rollout_id, state in watch.states().items() if state is None]
        if unknown:
            raise UnknownRolloutError(unknown)
    return False


def timed_out(watch: Watch, timeout_s: float) -> WaitTimeoutError:
    """The error that says what is still waited for."""
    states = watch.states()
    unfinished = {key: state for key, state in states.items() if state is None or not state.is_final}
    return WaitTimeoutError(unfinished, len(states), timeout_s)


def task_text(task: JSON, index: int) -> str:
    """A task as JSON; BadTaskError for what JSON has no form for."""
    try:
        text = json.dumps(task, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        # Its kind alone: the message may quote the task.
        raise BadTaskError(f"task {index} is not JSON: {_why(error)}") from None
    return text


def _why(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return "it holds text that is no Unicode"
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    if isinstance(error, TypeError):
        return "it holds something that JSON has no form for"
    return "it holds a number that is not finite, or itself"

"""AttemptLog: what others say in the attempts log of the attempts that run here.

It follows the log from where it ends at the start, without a group. Told to the runner are the ends that the
dispatcher writes (a deadline, a cancellation) and who started which attempt, here or elsewhere.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import structlog

from headrace.schemas.codec import Codec
from headrace.schemas.errors import BadRecordError, HeadraceError, RetryableError
from headrace.schemas.records import AttemptEvent
from headrace.schemas.topics import topic_name
from headrace.streams.client.tail import Tail
from headrace.streams.processors.lifecycle import DISPATCHER
from headrace.streams.runner.errors import RunnerFailedError
from headrace.streams.settings import KafkaSettings

_POLL_S = 0.25
_RETRY_S = 1.0

log = structlog.get_logger(__name__)


class LoggedEvent(NamedTuple):
    """What matters of an event in the log."""

    rollout_id: str
    attempt_id: str
    attempt: int
    kind: str
    status: str
    error: str | None
    is_dispatchers: bool
    """The dispatcher wrote it."""
    is_dispatched: bool
    """It starts an attempt that the dispatcher asked for."""


class AttemptLog:
    """`start` returns when nothing that comes from then on is missed."""

    def __init__(
        self,
        kafka: KafkaSettings,
        codec: Codec,
        *,
        runs_here: Mapping[bytes, object],
        deliver: Callable[[list[LoggedEvent]], None],
        failed: Callable[[HeadraceError], None],
    ) -> None:
        """`runs_here` is looked into from another thread: rollout ids, as keys."""
        self._codec = codec
        self._runs_here = runs_here
        self._deliver = deliver
        self._failed = failed
        self._topic = topic_name(AttemptEvent, kafka.topic_prefix)
        self._tail = Tail(kafka, name="runner")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-attempt-log", daemon=True)

    def start(self) -> None:
        self._tail.move(self._tail.ends(self._tail.places(self._topic)))
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._step()
        except HeadraceError as error:
            self._failed(error)
        except Exception as error:  # noqa: BLE001  without the log no attempt could be cancelled
            self._failed(RunnerFailedError(f"reading {self._topic} failed: {type(error).__name__}: {error}"))
        finally:
            self._tail.close()

    def _step(self) -> None:
        try:
            tailed = self._tail.poll(_POLL_S)
        except RetryableError as error:
            log.warning("kafka", error=str(error))
            self._stopping.wait(_RETRY_S)
            return
        events = []
        for record in tailed:
            if record.at_end:
                continue
            try:
                # Not validated: that would double the cost, and there is one of these for each beat of each.
                fields = self._codec.read_body(self._codec.unframe(record.value, AttemptEvent.__name__))
            except BadRecordError:
                # The dispatcher buries it.
                continue
            event = _event(fields)
            # Most are heartbeats and ends of other runners' attempts.
            if event.is_dispatchers or event.is_dispatched or record.key in self._runs_here:
                events.append(event)
        if events:
            self._deliver(events)


def _event(fields: Mapping[str, Any]) -> LoggedEvent:
    origin = fields["origin"]
    return LoggedEvent(
        fields["rollout_id"],
        fields["attempt_id"],
        fields["attempt"],
        fields["kind"],
        fields["status"],
        fields["error"],
        fields["runner_id"] == DISPATCHER,
        origin is not None and origin["dispatched"],
    )

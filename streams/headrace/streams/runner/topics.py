"""Waits until the topics that a runner needs are there, and says so meanwhile (C18)."""

import asyncio
import time

import structlog
from confluent_kafka import KafkaException

from headrace.schemas.errors import FatalError
from headrace.schemas.records import AttemptEvent, AttemptTask, DeadLetter, ResourceVersion, Reward, Span
from headrace.schemas.topics import topic_name
from headrace.streams.client.admin import admin_client
from headrace.streams.settings import KafkaSettings

_NEEDED = (AttemptTask, AttemptEvent, Span, Reward, ResourceVersion, DeadLetter)
_LOOK_S = 3.0
_TRY_EVERY_S = 1.0
_SAY_EVERY_S = 10.0

log = structlog.get_logger(__name__)


async def wait_for_topics(kafka: KafkaSettings, stop: asyncio.Event, *, limit_s: float) -> bool:
    """Whether they are there; False when told to stop before.

    An absent broker is waited for without end, absent topics for `limit_s`: then FatalError.
    """
    quiet = kafka.model_copy(update={"extra": {"log_level": 0} | kafka.extra})
    admin = admin_client(quiet)
    needed = [topic_name(record, kafka.topic_prefix) for record in _NEEDED]
    absent_since: float | None = None
    said = float("-inf")
    while not stop.is_set():
        now = time.monotonic()
        try:
            found = (await asyncio.to_thread(admin.list_topics, timeout=_LOOK_S)).topics
        except KafkaException as error:
            what, reason, absent_since = "broker", error.args[0].str(), None
        else:
            missing = [topic for topic in needed if topic not in found]
            if not missing:
                return True
            what, reason = "topics", ", ".join(missing)
            absent_since = now if absent_since is None else absent_since
            if now - absent_since > limit_s:
                raise FatalError(f"not there after {limit_s:g} s: {reason}; run `headrace topics apply`")
        if now - said > _SAY_EVERY_S:
            said = now
            log.warning("waiting", what=what, kafka=kafka.bootstrap_servers, reason=reason)
        try:
            async with asyncio.timeout(_TRY_EVERY_S):
                await stop.wait()
        except TimeoutError:
            continue
    return False

"""Writes outputs and changelog through aiokafka's producer, and awaits every acknowledgement.

The producer is idempotent, so that a batch once accepted by it is tried until the broker takes it. What is
retried here is only what did not get that far. Errors that no retry mends (too large, not authorized, fenced)
are raised.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import structlog
from aiokafka.errors import KafkaError, KafkaTimeoutError
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.default_records import DefaultRecordBatch

from headrace.streams.processor import Output
from headrace.streams.state import Change

_RETRY_S = 1.0

log = structlog.get_logger(__name__)
T = TypeVar("T")


class KafkaJournal:
    """Appends in order; one `append` that fits into a batch is kept whole or not at all."""

    def __init__(self, producer: Callable[[], Any], *, changelog: str, batch_bytes: int) -> None:
        self._producer = producer
        self._changelog = changelog
        self._batch_bytes = batch_bytes

    async def publish(self, outputs: Sequence[Output]) -> None:
        acknowledgements = [await _patiently(self._send, output) for output in outputs]
        await asyncio.gather(*acknowledgements)

    async def append(self, partition: int, changes: Sequence[Change]) -> int | None:
        acknowledgements: list[tuple[Awaitable[Any], int]] = []
        batch = self._new_batch()
        for key, value in changes:
            if batch.append(timestamp=None, key=key, value=value) is None:
                acknowledgements.append(await self._send_batch(partition, batch))
                batch = self._new_batch()
                batch.append(timestamp=None, key=key, value=value)
        acknowledgements.append(await self._send_batch(partition, batch))
        sent = await asyncio.gather(*(acknowledgement for acknowledgement, _ in acknowledgements))
        base: int = sent[-1].offset
        # The broker answers a batch that it has long had with -1 for its offset.
        return None if base < 0 else base + acknowledgements[-1][1] - 1

    def _new_batch(self) -> BatchBuilder:
        return BatchBuilder(self._batch_bytes, DefaultRecordBatch.CODEC_ZSTD)

    async def _send(self, output: Output) -> Awaitable[Any]:
        acknowledgement: Awaitable[Any] = await self._producer().send(
            output.topic, output.value, output.key, output.partition, headers=list(output.headers)
        )
        return acknowledgement

    async def _send_batch(self, partition: int, batch: BatchBuilder) -> tuple[Awaitable[Any], int]:
        batch.close()

        async def send() -> Awaitable[Any]:
            acknowledgement: Awaitable[Any] = await self._producer().send_batch(
                batch, self._changelog, partition=partition
            )
            return acknowledgement

        return await _patiently(send), batch.record_count()


async def _patiently(send: Callable[..., Awaitable[T]], *args: object) -> T:
    while True:
        try:
            return await send(*args)
        except KafkaError as exc:
            # aiokafka gives up waiting for room in its buffer with an error that it calls final.
            if not (exc.retriable or isinstance(exc, KafkaTimeoutError)):
                raise
            log.warning("broker does not take records; trying again", error=repr(exc))
            await asyncio.sleep(_RETRY_S)

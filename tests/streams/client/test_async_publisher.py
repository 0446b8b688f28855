"""The publisher for asyncio: acknowledged one by one, and the loop never waits (G1, G8)."""

import asyncio
import time

import pytest
from aiokafka.partitioner import DefaultPartitioner
from tests.builders import Attempt

from headrace.cli.stack import ports
from headrace.cli.stack.kafka import KafkaBroker
from headrace.schemas.records import Span
from headrace.schemas.topics import topic_name
from headrace.streams.client.admin import apply_topics, end_offsets
from headrace.streams.client.async_publisher import AsyncPublisher
from headrace.streams.client.errors import DeliveryError, PublisherFullError
from headrace.streams.settings import KafkaSettings


@pytest.mark.integration
def test_an_acknowledged_record_is_where_it_says(kafka: KafkaBroker, topic_prefix: str) -> None:
    settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers, topic_prefix=topic_prefix)
    apply_topics(settings)
    topic = topic_name(Span, topic_prefix)

    async def run() -> None:
        async with AsyncPublisher(settings) as publisher:
            attempts = [Attempt(f"{number}") for number in range(50)]
            places = await asyncio.gather(*(publisher.publish_acknowledged(a.call(1)) for a in attempts))
            ends = await asyncio.to_thread(end_offsets, settings, [topic])
            assert len(set(places)) == 50
            for attempt, (partition, offset) in zip(attempts, places, strict=True):
                assert partition == DefaultPartitioner()(
                    attempt.rollout_id.encode(), [0, 1, 2, 3], [0, 1, 2, 3]
                )
                assert offset < ends[topic, partition]
            # One key, one partition, in the order of publishing.
            offsets = [await publisher.publish_acknowledged(attempts[0].call(n)) for n in range(2, 5)]
            assert offsets == sorted(offsets)
            await publisher.publish(attempts[0].call(5))
            await publisher.flush()
            await publisher.publish(attempts[0].call(6))
        assert sum(end_offsets(settings, [topic]).values()) == 55

    asyncio.run(run())


def nowhere() -> KafkaSettings:
    return KafkaSettings(bootstrap_servers=f"127.0.0.1:{ports.pick()}")


def test_a_failure_is_its_own_callers_and_the_loop_goes_on_meanwhile() -> None:
    async def run() -> None:
        async with AsyncPublisher(nowhere(), delivery_timeout_s=0.4) as publisher:
            waiting = asyncio.create_task(publisher.publish_acknowledged(Attempt().call(1)))
            longest_s = 0.0
            while not waiting.done():
                began = time.monotonic()
                await asyncio.sleep(0.01)
                longest_s = max(longest_s, time.monotonic() - began)
            with pytest.raises(DeliveryError, match=r"1 records .* headrace\.spans\.v1"):
                await waiting
            assert longest_s < 0.3

    asyncio.run(run())


def test_what_was_published_without_waiting_fails_at_the_next_flush() -> None:
    async def run() -> None:
        async with AsyncPublisher(nowhere(), delivery_timeout_s=0.2) as publisher:
            await publisher.publish(Attempt().call(1))
            with pytest.raises(DeliveryError):
                await publisher.flush()

    asyncio.run(run())


def test_a_full_buffer_holds_the_caller_and_not_the_loop() -> None:
    async def run() -> None:
        options = {"max_pending": 10, "publish_timeout_s": 0.5, "delivery_timeout_s": 2.0}
        ticks = 0

        async def fill(publisher: AsyncPublisher) -> None:
            for number in range(1, 20):
                await publisher.publish(Attempt().span(number))

        async with AsyncPublisher(nowhere(), **options) as publisher:
            filling = asyncio.create_task(fill(publisher))
            while not filling.done():
                await asyncio.sleep(0.02)
                ticks += 1
            with pytest.raises(PublisherFullError):
                await filling
            with pytest.raises(DeliveryError, match="10 records"):
                await publisher.flush()
        assert ticks > 10

    asyncio.run(run())


def test_a_cancelled_caller_leaves_nothing_behind() -> None:
    async def run() -> None:
        async with AsyncPublisher(nowhere(), delivery_timeout_s=0.4) as publisher:
            waiting = asyncio.create_task(publisher.publish_acknowledged(Attempt().call(1)))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    asyncio.run(run())

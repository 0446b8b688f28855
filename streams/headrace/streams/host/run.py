"""Runs one processor in this process, from start to exit status."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import NoReturn

import structlog
from confluent_kafka.admin import AdminClient
from prometheus_client import start_http_server

from headrace.schemas.errors import FatalError
from headrace.streams.host.build import build, changelog_name
from headrace.streams.host.engine import App
from headrace.streams.host.metrics import EventCounts, HostMetrics
from headrace.streams.host.observer import Observer
from headrace.streams.host.settings import HostSettings
from headrace.streams.host.topics import Stopped, changelog_config, ensure_changelog, wait_for_topics
from headrace.streams.processor import Processor
from headrace.streams.settings import KafkaSettings

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_STUCK = 70

_CHECK_S = 1.0
_GC_THRESHOLD = 50_000
"""A batch makes thousands of short-lived objects and no cycles: looking for those less often gave 21 % more
events a second."""
_CRASH_CHECK_S = 0.2
_FAILED_STOP_S = 5.0

log = structlog.get_logger(__name__)


def run(
    processor: Processor, kafka: KafkaSettings, settings: HostSettings, metrics: HostMetrics | None = None
) -> int:
    """Run until told to stop by SIGTERM or SIGINT, or until something fails; return the exit status.

    0: told to stop, the batch in hand finished and committed. 1: an error, nothing committed that was not
    finished. 70: no progress for `watchdog_s`. The caller starts the process again. For the main thread only.
    """
    for name in ("faust", "mode", "aiokafka"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # To aiokafka every rebalance is a warning.
    logging.getLogger("aiokafka.consumer.group_coordinator").setLevel(logging.ERROR)
    gc.set_threshold(_GC_THRESHOLD)
    EventCounts(processor.name, processor.counts)
    try:
        with _serving_metrics(settings):
            return asyncio.run(_run(processor, kafka, settings, metrics or HostMetrics(processor.name)))
    except FatalError as exc:
        log.error("stopped", processor=processor.name, reason=str(exc))  # noqa: TRY400 - the message is whole
        return EXIT_FAILURE


async def _run(
    processor: Processor, kafka: KafkaSettings, settings: HostSettings, metrics: HostMetrics
) -> int:
    loop = asyncio.get_running_loop()
    told_to_stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told_to_stop.set)
    with _frozen_loop_guard(loop, settings.watchdog_s):
        try:
            partitions = await asyncio.to_thread(_prepare, processor, kafka, settings, told_to_stop.is_set)
        except Stopped:
            return EXIT_OK
        app = build(processor, kafka, settings, metrics, partitions=partitions)
        observer = Observer(app, metrics, settings.watchdog_s)
        status = await _live(app, observer, settings, told_to_stop)
        return await _stop(app, status, settings.shutdown_timeout_s)


def _prepare(
    processor: Processor, kafka: KafkaSettings, settings: HostSettings, stopped: Callable[[], bool]
) -> int:
    admin = AdminClient({"log_level": 0} | kafka.librdkafka())
    partitions = wait_for_topics(admin, processor.topics, limit_s=settings.startup_timeout_s, stopped=stopped)
    ensure_changelog(
        admin,
        changelog_name(processor, kafka),
        partitions=partitions,
        replication=kafka.replication_factor or -1,
        config=changelog_config(settings.changelog_batch_bytes, 2 * settings.max_state_age_s),
    )
    return partitions


async def _live(app: App, observer: Observer, settings: HostSettings, told_to_stop: asyncio.Event) -> int:
    """Start the app and return when it is told to stop (0), has failed, or is stuck."""
    tasks = {
        asyncio.create_task(told_to_stop.wait()): EXIT_OK,
        asyncio.create_task(_run_app(app)): EXIT_FAILURE,
        asyncio.create_task(_tick(app, settings.tick_interval_s)): EXIT_FAILURE,
        asyncio.create_task(observer.run()): EXIT_STUCK,
    }
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    status = max(tasks[task] for task in done)
    for task in done:
        exc = task.exception()
        if exc is not None:
            status = EXIT_FAILURE
            # As text: a renderer that shows local variables would show what the records say.
            log.error("failed", app=app.conf.id, traceback="".join(traceback.format_exception(exc)))
    return status


async def _run_app(app: App) -> None:
    """Start the app, wait until it crashes, and raise the reason."""
    starting = asyncio.create_task(app.start())
    try:
        # A crash may be noted from the consumer's thread, which wakes nobody here.
        while not app.crashed:
            if starting.done():
                starting.result()
            await asyncio.sleep(_CRASH_CHECK_S)
    finally:
        starting.cancel()
    raise FatalError(f"Faust stopped: {app.crash_reason!r}") from app.crash_reason


async def _tick(app: App, interval_s: float) -> None:
    while True:
        await asyncio.sleep(interval_s)
        await app.worker.tick()


async def _stop(app: App, status: int, limit_s: float) -> int:
    """Finish and commit the batch in hand if nothing failed, then leave the group."""
    if status != EXIT_OK:
        # What failed may be what a clean end would wait for.
        limit_s = min(limit_s, _FAILED_STOP_S)
    try:
        async with asyncio.timeout(limit_s):
            if status == EXIT_OK and app.started:
                app.consumer.stop_flow()
                await app.hand_back()
                status = EXIT_FAILURE if app.crashed else EXIT_OK
            await app.stop()
    except TimeoutError:
        # Nothing is lost by it: what is not committed comes again. Threads of the client may hang with the
        # broker, and would keep the process alive.
        log.warning("did not stop in time", app=app.conf.id, limit_s=limit_s)
        _exit_now(status or EXIT_FAILURE)
    return status


def _exit_now(status: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@contextlib.contextmanager
def _serving_metrics(settings: HostSettings) -> Iterator[None]:
    if settings.metrics_port is None:
        yield
        return
    server, thread = start_http_server(settings.metrics_port, settings.metrics_host)
    log.info("metrics", host=settings.metrics_host, port=server.server_port)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def _frozen_loop_guard(loop: asyncio.AbstractEventLoop, limit_s: float) -> Iterator[None]:
    """End the process when the event loop has not run for so long: nothing in it could say so."""
    done = threading.Event()
    beat_s = time.monotonic()

    def beat() -> None:
        nonlocal beat_s
        beat_s = time.monotonic()

    def watch() -> None:
        while not done.wait(_CHECK_S):
            if time.monotonic() - beat_s > limit_s:
                log.critical("event loop frozen, ending the process", limit_s=limit_s)
                _exit_now(EXIT_STUCK)
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                loop.call_soon_threadsafe(beat)

    thread = threading.Thread(target=watch, name="frozen-loop-guard", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()

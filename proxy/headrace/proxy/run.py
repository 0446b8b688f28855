"""Wires a proxy: settings in, exit status out."""

import asyncio
import gc
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import structlog
import uvloop

from headrace.proxy.app import application
from headrace.proxy.attempts import Attempts
from headrace.proxy.call import Parts
from headrace.proxy.fleet import base_urls, start_engines
from headrace.proxy.gate import Gate
from headrace.proxy.keys import KeyRing
from headrace.proxy.metrics import ProxyMetrics
from headrace.proxy.recorder import Recorder
from headrace.proxy.server import listen, serve, server
from headrace.proxy.settings import ProxySettings
from headrace.proxy.upstream import Upstream
from headrace.schemas.codec import Codec
from headrace.schemas.errors import FatalError, HeadraceError, RetryableError
from headrace.streams.client.publisher import Publisher
from headrace.streams.client.resources import ResourceStore
from headrace.streams.runner.attempt_log import AttemptLog
from headrace.streams.runner.mailbox import Mailbox
from headrace.streams.runner.outlet import KafkaOutlet
from headrace.streams.runner.topics import wait_for_topics
from headrace.streams.settings import KafkaSettings

EXIT_OK = 0
EXIT_FAILURE = 1

_CUT_S = 5.0
"""For calls that are cut at the end: to be recorded, and answered."""
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
log = structlog.get_logger(__name__)


def run(kafka: KafkaSettings, settings: ProxySettings, codec: Codec | None = None) -> int:
    """Serve until SIGTERM or SIGINT, or until something fails; return the exit status. Main thread only.

    0: told to stop; running calls have ended or are cut, and every span is in Kafka. 1: something is not.
    """
    check(settings)
    settings = settings.model_copy(update={"weights": settings.weights or None})
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(kafka, settings, codec or Codec()))


def check(settings: ProxySettings) -> None:
    """FatalError for settings that can't be served."""
    if not settings.upstreams:
        raise FatalError("a proxy needs an engine: --upstream URL, or HEADRACE_PROXY_UPSTREAMS")
    base_urls(settings)
    if settings.keys_file is None and settings.host not in _LOOPBACK and not settings.allow_anonymous:
        raise FatalError(
            f"without keys a proxy listens on loopback only, and not on {settings.host}: "
            "give --keys FILE (`headrace proxy keys add`), or --allow-anonymous"
        )


async def _run(kafka: KafkaSettings, settings: ProxySettings, codec: Codec) -> int:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    keys = KeyRing(settings.keys_file) if settings.keys_file else None
    # Early: who finds the port taken should hear of it at once.
    listening = listen(settings.host, settings.port)
    async with AsyncExitStack() as stack:
        stack.callback(listening.close)
        if not await wait_for_topics(kafka, stop, limit_s=settings.startup_timeout_s):
            return EXIT_OK
        publisher = Publisher(
            kafka,
            codec=codec,
            linger_ms=settings.linger_ms,
            # Who publishes here is the loop that serves every call: a full buffer is an error at once.
            publish_timeout_s=0,
            delivery_timeout_s=settings.delivery_timeout_s,
            properties={"client.id": "headrace-proxy"},
        )
        outlet = stack.enter_context(KafkaOutlet(publisher))
        mailbox = Mailbox(loop)
        failures: list[HeadraceError] = []

        def failed(error: HeadraceError) -> None:
            failures.append(error)
            mailbox.post(stop.set)

        recorder = Recorder(outlet, mailbox, late_s=settings.late_s, failed=failed)
        stack.push_async_callback(recorder.close)
        upstream = await stack.enter_async_context(Upstream(settings))
        store = ResourceStore(kafka, codec)
        stack.callback(store.close)
        if not await _unless_stopped(store.start, stop, mailbox):
            return EXIT_OK
        engines, weights = await stack.enter_async_context(start_engines(settings, upstream, store))
        attempts = Attempts(settings, outlet, mailbox, on_end=engines.forget)
        parts = Parts(settings, engines, upstream, recorder, ProxyMetrics(), weights)
        gate = Gate(attempts, keys)
        follower = AttemptLog(
            kafka,
            codec,
            runs_here=attempts.rollouts,
            deliver=lambda events: mailbox.post(lambda: attempts.hear(events)),
            failed=failed,
        )
        stack.callback(follower.stop)
        if not await _unless_stopped(follower.start, stop, mailbox):
            return EXIT_OK
        await _serve(parts, attempts, gate, listening=listening, stop=stop)
        unsent = await _flush(outlet, settings.delivery_timeout_s)
        failure = next(iter(failures), unsent)
        log.info("proxy stopped", reason=str(failure) if failure else "told to")
        return EXIT_FAILURE if failure else EXIT_OK


async def _unless_stopped(work: Callable[[], object], stop: asyncio.Event, mailbox: Mailbox) -> bool:
    """Run what blocks, in a thread that nobody waits for once told to stop; whether it came to its end."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(error: Exception | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def run() -> None:
        error: Exception | None = None
        try:
            work()
        except Exception as raised:  # noqa: BLE001  it is raised where it is waited for
            error = raised
        mailbox.post(lambda: settle(error))

    threading.Thread(target=run, name="headrace-start", daemon=True).start()
    stopping = asyncio.ensure_future(stop.wait())
    either: list[asyncio.Future[Any]] = [done, stopping]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not done.done():
        done.cancel()
        return False
    done.result()
    return True


async def _serve(
    parts: Parts, attempts: Attempts, gate: Gate, *, listening: socket.socket, stop: asyncio.Event
) -> None:
    """From the first request to the last answer; then close what is still open."""
    settings = parts.settings
    running = server(
        application(parts, attempts, gate),
        max_header_bytes=settings.max_header_bytes,
        head_timeout_s=settings.head_timeout_s,
        stop_timeout_s=settings.stop_timeout_s + _CUT_S,
    )
    background = [asyncio.ensure_future(work) for work in (attempts.sweep(), gate.refresh())]
    host, port = listening.getsockname()[:2]
    log.info(
        "proxy started",
        url=f"http://{host}:{port}",
        upstreams=base_urls(settings),
        weights=settings.weights,
        keys="none: whoever reaches it may use it" if settings.keys_file is None else str(settings.keys_file),
    )
    _settle_garbage()
    await serve(running, listening, stop, cut=attempts.cut_calls, cut_after_s=settings.stop_timeout_s)
    for task in background:
        task.cancel()
    await asyncio.gather(*background, return_exceptions=True)
    # Their runners will find no proxy, or a new one that does not know them, and fail them.
    left = await attempts.close_all(settings.close_timeout_s)
    if left:
        log.error("attempts not closed", num=len(left))


def _settle_garbage() -> None:
    """What is loaded by now stays: full collections over it took 40 to 100 ms, and a fifth of the CPU."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


async def _flush(outlet: KafkaOutlet, timeout_s: float) -> HeadraceError | None:
    try:
        await asyncio.to_thread(outlet.flush, timeout_s)
    except RetryableError as error:
        log.error("events lost", error=str(error))  # noqa: TRY400  the message is whole
        return error
    return None

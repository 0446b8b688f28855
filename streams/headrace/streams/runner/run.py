"""Wires a runner: settings and an agent in, exit status out."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec

import structlog

from headrace.schemas.codec import Codec
from headrace.schemas.errors import FatalError, HeadraceError, RetryableError
from headrace.streams.client.publisher import Publisher
from headrace.streams.client.resources import ResourceStore
from headrace.streams.runner.agent import Agent
from headrace.streams.runner.async_agents import AsyncAgents
from headrace.streams.runner.attempt_log import AttemptLog
from headrace.streams.runner.attempt_server import AttemptServer
from headrace.streams.runner.command_agents import CommandAgents
from headrace.streams.runner.execution import Executor
from headrace.streams.runner.mailbox import Mailbox
from headrace.streams.runner.metrics import RunnerMetrics
from headrace.streams.runner.outlet import KafkaOutlet
from headrace.streams.runner.proxy_client import ProxyClient
from headrace.streams.runner.proxy_sequencer import Patience, RemoteSequencer
from headrace.streams.runner.runner import Runner
from headrace.streams.runner.sequencer import LocalSequencer, Sequencer
from headrace.streams.runner.settings import RunnerSettings
from headrace.streams.runner.tasks import TaskSource
from headrace.streams.runner.thread_agents import ThreadAgents
from headrace.streams.runner.topics import wait_for_topics
from headrace.streams.settings import KafkaSettings

EXIT_OK = 0
EXIT_FAILURE = 1

_LEAVE_S = 10.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Command:
    """An agent in any language, and the environment that it inherits."""

    arguments: Sequence[str]
    environment: Mapping[str, str]


@dataclass
class _Signals:
    """The first asks for a drain, the second for an end at once."""

    stop: asyncio.Event = field(default_factory=asyncio.Event)
    hurry: asyncio.Event = field(default_factory=asyncio.Event)

    def receive(self) -> None:
        if self.stop.is_set():
            self.hurry.set()
        self.stop.set()


def run(
    agent: Agent | Command, kafka: KafkaSettings, settings: RunnerSettings, codec: Codec | None = None
) -> int:
    """Run until SIGTERM or SIGINT, or until something fails; return the exit status. Main thread only.

    0: told to stop; what ran has ended, or is ended as `unresponsive` for others to try again. 1: an error,
    or too many agents that hang. What Kafka did not acknowledge in time is an error too.
    """
    status, hangs = asyncio.run(_run(agent, kafka, settings, codec or Codec()))
    if hangs:
        # Threads that hang could hold up the interpreter's end as well.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


async def _run(
    agent: Agent | Command, kafka: KafkaSettings, settings: RunnerSettings, codec: Codec
) -> tuple[int, bool]:
    signals = _Signals()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.receive)
    if not await wait_for_topics(kafka, signals.stop, limit_s=settings.startup_timeout_s):
        return EXIT_OK, False
    async with AsyncExitStack() as stack:
        executor = await _executor(agent, settings, stack)
        new_sequencer = await _sequencers(settings, stack)
        metrics = _metrics(settings, stack)
        store = ResourceStore(kafka, codec)
        await asyncio.to_thread(store.start)
        stack.callback(store.close)
        publisher = Publisher(
            kafka,
            codec=codec,
            linger_ms=settings.linger_ms,
            delivery_timeout_s=settings.delivery_timeout_s,
            properties={"client.id": "headrace-runner"},
        )
        outlet = stack.enter_context(KafkaOutlet(publisher))
        mailbox = Mailbox(loop)

        def failed(error: HeadraceError) -> None:
            mailbox.post(lambda: runner.fail(error))

        tasks = TaskSource(
            kafka,
            codec,
            outlet,
            num_slots=settings.concurrency,
            session_timeout_s=settings.session_timeout_s,
            deliver=lambda taken: mailbox.post(lambda: runner.take(taken)),
            failed=failed,
        )
        runner = Runner(
            settings,
            executor,
            outlet,
            mailbox=mailbox,
            resources=store,
            release=tasks.release,
            metrics=metrics,
            new_sequencer=new_sequencer,
        )
        attempts = AttemptLog(
            kafka,
            codec,
            runs_here=runner.runs_here,
            deliver=lambda events: mailbox.post(lambda: runner.hear(events)),
            failed=failed,
        )
        await asyncio.to_thread(attempts.start)
        tasks.start()
        log.info(
            "runner started",
            runner_id=runner.runner_id,
            agent=agent.name if isinstance(agent, Agent) else agent.arguments[0],
            concurrency=settings.concurrency,
            kafka=kafka.bootstrap_servers,
            proxy=settings.proxy_url,
        )
        await _live(runner, tasks, signals, settings)
        attempts.stop()
        await asyncio.to_thread(tasks.join, _LEAVE_S)
        await asyncio.to_thread(attempts.join, _LEAVE_S)
        unsent = await _flush(outlet, settings.flush_timeout_s)
        failure = runner.failure or unsent
        log.info("runner stopped", reason=str(failure) if failure else "told to")
        return (EXIT_FAILURE if failure else EXIT_OK), runner.num_abandoned > 0


async def _live(runner: Runner, tasks: TaskSource, signals: _Signals, settings: RunnerSettings) -> None:
    """From the first task to the last end."""
    await _first(signals.stop.wait(), runner.told_to_drain())
    tasks.stop()
    log.info("draining", num_running=len(runner.runs_here), timeout_s=settings.drain_timeout_s)
    if not await _first(runner.drained(settings.drain_timeout_s), signals.hurry.wait()):
        log.warning("ending what still runs", num_running=len(runner.runs_here))
    runner.end_all()
    if not await runner.drained(settings.kill_grace_s + settings.flush_timeout_s):
        runner.give_up()


async def _first(*waits: Coroutine[None, None, bool | None]) -> bool:
    """Wait for the first of them; whether that is the one in front, with a result that isn't False."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    return tasks[0] in done and tasks[0].result() is not False


async def _flush(outlet: KafkaOutlet, timeout_s: float) -> HeadraceError | None:
    try:
        await asyncio.to_thread(outlet.flush, timeout_s)
    except RetryableError as error:
        log.error("events lost", error=str(error))  # noqa: TRY400  the message is whole
        return error
    return None


async def _executor(agent: Agent | Command, settings: RunnerSettings, stack: AsyncExitStack) -> Executor:
    if isinstance(agent, Command):
        server = await stack.enter_async_context(AttemptServer())
        return stack.enter_context(
            CommandAgents(
                agent.arguments,
                server,
                environment=agent.environment,
                kill_grace_s=settings.kill_grace_s,
            )
        )
    if settings.otel and _has("opentelemetry.sdk"):
        from headrace.streams.runner.otel import instrument  # noqa: PLC0415  an extra

        if not instrument():
            log.warning("OpenTelemetry's tracer provider takes no processors: its spans are not recorded")
    return AsyncAgents(agent) if agent.is_async else ThreadAgents(agent)


async def _sequencers(settings: RunnerSettings, stack: AsyncExitStack) -> Callable[[], Sequencer]:
    """Of the proxy where there is one, else our own."""
    if settings.proxy_url is None:
        return LocalSequencer
    if settings.base_url is not None:
        raise FatalError("agents have one model API: base_url and proxy_url exclude each other")
    client = ProxyClient(settings.proxy_url, settings.proxy_key, timeout_s=settings.proxy_timeout_s)
    await stack.enter_async_context(client)
    patience = Patience(settings.proxy_timeout_s, settings.proxy_open_timeout_s, settings.delivery_timeout_s)
    return lambda: RemoteSequencer(client, patience, agent=settings.agent_name)


def _metrics(settings: RunnerSettings, stack: ExitStack | AsyncExitStack) -> RunnerMetrics:
    if settings.metrics_port is None:
        return RunnerMetrics()
    if not _has("prometheus_client"):
        raise FatalError("metrics need prometheus-client: pip install 'headrace[streams]'")
    from prometheus_client import start_http_server  # noqa: PLC0415  an extra

    from headrace.streams.runner.prometheus import PrometheusMetrics  # noqa: PLC0415

    server, thread = start_http_server(settings.metrics_port, addr="127.0.0.1")
    stack.callback(thread.join)
    stack.callback(server.server_close)
    stack.callback(server.shutdown)
    log.info("metrics", port=server.server_port)
    return PrometheusMetrics()


def _has(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False

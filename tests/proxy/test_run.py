"""The proxy as a process: what it refuses to start with, its settings, and its end."""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import orjson
import pytest
from tests.chaos.proxy_scene import read_spans
from tests.deploy.cli.conftest import Cli
from tests.pipeline import wait_until
from tests.proxy.harness import upstream_url
from tests.proxy.process import ProxyProcess, a_process

from headrace.cli.stack.kafka import KafkaBroker
from headrace.proxy.run import _unless_stopped, check
from headrace.proxy.settings import ProxySettings
from headrace.schemas.errors import FatalError
from headrace.schemas.ids import uuid7
from headrace.streams.client.admin import apply_topics
from headrace.streams.runner.mailbox import Mailbox
from headrace.streams.settings import KafkaSettings

__all__ = ["upstream_url"]

NOWHERE = KafkaSettings(bootstrap_servers="127.0.0.1:9")
URL = "http://127.0.0.1:9"


@pytest.fixture
def topics(kafka: KafkaBroker, topic_prefix: str) -> KafkaSettings:
    settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers, topic_prefix=topic_prefix)
    apply_topics(settings)
    return settings


# --- what it does not start with -------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "gpu1"])  # noqa: S104  refused
def test_without_keys_only_loopback_is_listened_on(host: str, tmp_path: Path) -> None:
    settings = ProxySettings(upstreams=(URL,), host=host)
    with pytest.raises(FatalError, match="without keys a proxy listens on loopback only"):
        check(settings)
    check(settings.model_copy(update={"keys_file": tmp_path}))
    check(settings.model_copy(update={"allow_anonymous": True}))


def refusal(folder: Path, *upstreams: str, arguments: tuple[str, ...] = (), **env: str) -> str:
    """What a proxy says that ends at once."""
    process = ProxyProcess(folder, NOWHERE, *upstreams, arguments=arguments, **env)
    with a_process(process):
        assert process.exited() == 1
        log = process.log()
    assert "Traceback" not in log
    return log


def test_it_says_what_it_needs(tmp_path: Path) -> None:
    cli = Cli({})
    assert "--upstream URL" in cli("proxy", status=1).stderr
    there = ("--upstream", URL, "--host", "0.0.0.0")  # noqa: S104
    assert "loopback only" in cli("proxy", *there, status=1).stderr
    log = refusal(tmp_path, URL, arguments=("--keys", str(tmp_path / "none.json")))
    assert "keys can't be read from" in log


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        log = refusal(tmp_path, URL, arguments=("--port", port))
    assert f"can't listen on 127.0.0.1:{port}" in log


@pytest.mark.parametrize(
    ("upstreams", "why"),
    [
        pytest.param((URL, f"{URL}/v1/"), "an upstream is given twice", id="twice"),
        pytest.param((f"{URL}?key=SECRET",), "is no URL of an engine", id="with a query"),
        pytest.param(("http://me:SECRET@host:1",), "HEADRACE_PROXY_UPSTREAM_API_KEY", id="with a password"),
    ],
)
def test_upstreams_that_are_none(tmp_path: Path, upstreams: tuple[str, ...], why: str) -> None:
    log = refusal(tmp_path, *upstreams)
    assert why in log
    assert "SECRET" not in log


# --- settings --------------------------------------------------------------------------------------------


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "UPSTREAMS": '["http://gpu1:8000", "http://gpu2:8000"]',
        "UPSTREAM_API_KEY": "SECRET",
        "PORT": "0",
        "KEYS_FILE": "/etc/keys.json",
        "MAX_CALLS": "7",
        "LATE_S": "0.5",
    }
    for name, value in given.items():
        monkeypatch.setenv(f"HEADRACE_PROXY_{name}", value)
    settings = ProxySettings()
    assert settings.upstreams == ("http://gpu1:8000", "http://gpu2:8000")
    assert (settings.port, settings.max_calls, settings.late_s) == (0, 7, 0.5)
    assert settings.keys_file == Path("/etc/keys.json")
    assert "SECRET" not in repr(settings)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://gpu1:8000", ("http://gpu1:8000",)),
        ("http://gpu1:8000, http://gpu2:8000", ("http://gpu1:8000", "http://gpu2:8000")),
        (' ["http://gpu1:8000"]', ("http://gpu1:8000",)),
        ("", ()),
    ],
    ids=["one", "two", "JSON", "none"],
)
def test_upstreams_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, given: str, expected: tuple[str, ...]
) -> None:
    monkeypatch.setenv("HEADRACE_PROXY_UPSTREAMS", given)
    assert ProxySettings().upstreams == expected


@pytest.mark.parametrize(
    ("name", "value"), [("PORT", "70000"), ("MAX_CALLS", "0"), ("UPSTREAMS", "[1]"), ("UPSTREAM_KIND", "x")]
)
def test_settings_that_make_no_sense(name: str, value: str) -> None:
    variable = f"HEADRACE_PROXY_{name}"
    assert variable in Cli({variable: value})("proxy", status=1).stderr


# --- keys ------------------------------------------------------------------------------------------------


def test_keys_by_command(tmp_path: Path) -> None:
    path = str(tmp_path / "keys.json")
    cli = Cli({"HEADRACE_PROXY_KEYS_FILE": path})
    key = cli("proxy", "keys", "add", "trainer").stdout.strip()
    assert key.startswith("hr-")
    listed = cli("proxy", "keys", "list").stdout
    assert "trainer" in listed
    assert key not in listed
    assert "there is a key named" in cli("proxy", "keys", "add", "trainer", status=1).stderr
    cli("proxy", "keys", "revoke", "trainer", "--keys", path)
    assert "trainer" not in cli("proxy", "keys", "list").stdout
    assert "no key named" in cli("proxy", "keys", "revoke", "trainer", status=1).stderr
    assert "can't be read" in cli("proxy", "keys", "list", "--keys", str(tmp_path / "none"), status=1).stderr
    assert "no name for a key" in cli("proxy", "keys", "add", "", status=1).stderr


# --- its end ---------------------------------------------------------------------------------------------


@pytest.fixture
def proxy(topics: KafkaSettings, tmp_path: Path, upstream_url: str) -> Iterator[ProxyProcess]:
    with a_process(ProxyProcess(tmp_path, topics, upstream_url, stop_timeout_s="2")) as made:
        made.wait_ready()
        yield made


class Caller:
    """A call in a thread of its own."""

    def __init__(self, proxy: ProxyProcess, path: str, **members: object) -> None:
        self.status: int | None = None
        self.text = ""
        self._url = f"{proxy.url}{path}/v1/chat/completions"
        self._body = {"model": "fake", "messages": [], "max_tokens": 4, **members}
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            answer = httpx.post(self._url, json=self._body, timeout=30, trust_env=False)
        except httpx.TransportError:
            return
        self.status, self.text = answer.status_code, answer.text

    def finish(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()


def opened(proxy: ProxyProcess) -> str:
    body = {"rollout_id": uuid7(), "attempt_id": uuid7()}
    path: str = httpx.post(f"{proxy.url}/attempts", json=body, trust_env=False).json()["path"]
    return path


def send(proxy: ProxyProcess, number: signal.Signals) -> None:
    assert proxy.pid is not None
    os.kill(proxy.pid, number)


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_running_calls_end_and_so_does_it(
    proxy: ProxyProcess, topics: KafkaSettings, number: signal.Signals
) -> None:
    """Those that take too long are cut, and recorded so; the exit status says that all is in Kafka."""
    path = opened(proxy)
    with ExitStack() as stack:
        fault = {"kind": "stalls", "after": 2}
        callers = [Caller(proxy, path, fault=fault, stream=each) for each in (False, True)]
        for caller in callers:
            stack.callback(caller.finish)
        wait_until(lambda: proxy.metric("headrace_proxy_running_calls") == 2, what="running calls")
        send(proxy, number)
        assert proxy.exited() == 0
    whole, stream = callers
    assert whole.status == 503
    assert '"code":"proxy_stopped"' in whole.text
    assert stream.status == 200
    assert '"code":"proxy_stopped"' in stream.text
    spans = [each.span for each in read_spans(topics)]
    assert sorted((span.sequence_id, span.kind) for span in spans) == [(1, "client"), (2, "client")]
    assert [span.status_message for span in spans] == ["proxy_stopped"] * 2
    log = proxy.log()
    assert '"event": "proxy stopped"' in log
    assert "attempts not closed" not in log


@pytest.mark.integration
def test_it_waits_for_kafka_and_stops_when_told(tmp_path: Path) -> None:
    process = ProxyProcess(tmp_path, NOWHERE, URL)
    with a_process(process):
        wait_until(lambda: '"waiting"' in process.log(), what="word of what it waits for")
        send(process, signal.SIGTERM)
        assert process.exited() == 0
        assert "127.0.0.1:9" in process.log()


async def test_what_blocks_is_not_waited_for_once_told_to_stop() -> None:
    stop, may_end = asyncio.Event(), threading.Event()
    mailbox = Mailbox(asyncio.get_running_loop())
    async with asyncio.timeout(20):
        starting = asyncio.ensure_future(_unless_stopped(may_end.wait, stop, mailbox))
        await asyncio.sleep(0)
        stop.set()
        assert await starting is False
        may_end.set()
        assert await _unless_stopped(lambda: None, asyncio.Event(), mailbox) is True


async def test_what_fails_at_the_start_is_raised() -> None:
    def fail() -> None:
        raise FatalError("no such topic")

    with pytest.raises(FatalError, match="no such topic"):
        await _unless_stopped(fail, asyncio.Event(), Mailbox(asyncio.get_running_loop()))


@pytest.mark.integration
def test_it_starts_without_its_upstream_and_stops_at_once(topics: KafkaSettings, tmp_path: Path) -> None:
    with a_process(ProxyProcess(tmp_path, topics, URL)) as proxy:
        wait_until(lambda: proxy.get("/readyz") is not None, what="the proxy's start")
        assert not proxy.is_ready()
        send(proxy, signal.SIGTERM)
        assert proxy.exited() == 0


@pytest.mark.integration
def test_several_upstreams(topics: KafkaSettings, tmp_path: Path, upstream_url: str) -> None:
    """One that does not answer holds up nobody."""
    with a_process(ProxyProcess(tmp_path, topics, upstream_url, URL)) as proxy:
        proxy.wait_ready()

        def states() -> list[str]:
            answer = proxy.get("/readyz")
            assert answer is not None
            return sorted(engine["state"] for engine in answer.json()["engines"])

        wait_until(lambda: states() == ["out", "serving"], what="word of both engines")
        path = opened(proxy)
        caller = Caller(proxy, path)
        caller.finish()
        assert caller.status == 200
        assert orjson.loads(caller.text)["choices"]
        proxy.stop()
        assert proxy.exit_status == 0

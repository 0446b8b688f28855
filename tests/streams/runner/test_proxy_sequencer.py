"""Ids from the proxy: whatever happens to requests, none comes twice, or is missing unnoticed (G2)."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs
from tests.builders import an_id
from tests.streams.runner.fake_proxy import KEY, LOST, FakeProxy, Fault, a_fake_proxy
from tests.streams.runner.twins import a_task

from headrace.streams.runner import proxy_sequencer
from headrace.streams.runner.errors import AttemptClosedError, ProxyFailedError
from headrace.streams.runner.proxy_client import ProxyClient
from headrace.streams.runner.proxy_sequencer import Patience, RemoteSequencer
from headrace.streams.runner.sequencer import Closed

ID = an_id("attempt")
SHORT = Patience(next_s=0.1, open_s=0.1, kafka_s=0.1)
BUSY = [Fault(429, retry_after="0"), Fault(503)]


class Scene:
    def __init__(self, proxy: FakeProxy, client: ProxyClient, patience: Patience) -> None:
        self.proxy = proxy
        self.sequencer = RemoteSequencer(client, patience)

    async def open(self) -> None:
        await self.sequencer.open(a_task(), ID)


def play(scene: Callable[[Scene], Awaitable[None]], patience: Patience | None = None) -> None:
    async def main() -> None:
        with a_fake_proxy() as proxy:
            async with ProxyClient(proxy.url, SecretStr(KEY), timeout_s=5) as client:
                await scene(Scene(proxy, client, patience or Patience()))

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  the server is in other threads
            await asyncio.sleep(0.001)


# --- open ------------------------------------------------------------------------------------------------


def test_opening_tells_where_the_model_is() -> None:
    async def scene(the: Scene) -> None:
        opened = await the.sequencer.open(a_task(attempt=2), ID)
        assert opened == (f"{the.proxy.url}/a/{ID}/v1", f"token-{ID}")
        body = {"rollout_id": a_task().rollout_id, "attempt_id": ID, "attempt": 2, "agent": ""}
        assert the.proxy.requests == [("open", body)]
        the.sequencer.next()
        await the.sequencer.close()
        assert the.proxy.headers == [f"Bearer {KEY}"] * 3

    play(scene)


def test_a_proxy_that_is_full_is_asked_again() -> None:
    async def scene(the: Scene) -> None:
        the.proxy.faults["open"].extend(BUSY)
        await the.open()
        assert the.proxy.count("open") == 3
        assert the.sequencer.next() == 1

    play(scene)


def test_a_proxy_that_is_away_is_waited_for() -> None:
    async def scene(the: Scene) -> None:
        the.proxy.kill()
        opening = asyncio.create_task(the.open())
        await asyncio.wait([opening], timeout=0.02)
        assert not opening.done()
        the.proxy.start()
        await opening
        assert the.sequencer.next() == 1

    play(scene)


@pytest.mark.parametrize(
    ("fault", "words", "num_closes"),
    [
        pytest.param(Fault(401), "refuses the runner .*HEADRACE_RUNNER_PROXY_KEY", 0, id="a wrong key"),
        pytest.param(Fault(404), "answered 404", 0, id="something else than the proxy"),
        pytest.param(Fault(409), "has this attempt open already", 1, id="opened before"),
        pytest.param(Fault(500), "answered 500", 1, id="an error of the proxy's"),
        pytest.param(Fault(201), "not understood", 1, id="no answer of the proxy's"),
        pytest.param(Fault(201, body='{"path": "x", "token": "t"}'), "not understood", 1, id="no path"),
        pytest.param(LOST, "gave no answer", 1, id="an answer that is lost"),
        pytest.param(Fault(429), "takes no more for now; asked for 0.1 s", 0, id="full for too long"),
        pytest.param(Fault(503, retry_after="60"), "takes no more for now", 0, id="full for a minute"),
    ],
)
def test_an_attempt_that_can_not_be_opened_says_why(fault: Fault, words: str, num_closes: int) -> None:
    """And the proxy hears of the end, where it could have opened it."""

    async def scene(the: Scene) -> None:
        the.proxy.always["open"] = fault
        with pytest.raises(ProxyFailedError, match=words) as raised:
            await the.open()
        assert KEY not in str(raised.value)
        assert await the.sequencer.close() == Closed(0)
        assert the.proxy.count("close") == num_closes

    play(scene, SHORT)


def test_a_proxy_that_does_not_come_is_given_up() -> None:
    async def scene(the: Scene) -> None:
        the.proxy.kill()
        with pytest.raises(ProxyFailedError, match=r"can't be reached; asked for 0\.1 s"):
            await the.open()
        assert await the.sequencer.close() == Closed(0)

    play(scene, SHORT)


def test_opening_can_be_cancelled() -> None:
    async def scene(the: Scene) -> None:
        the.proxy.always["open"] = Fault(429)
        opening = asyncio.create_task(the.open())
        await until(lambda: the.proxy.count("open") > 1)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert await the.sequencer.close() == Closed(0)

    play(scene)


# --- next ------------------------------------------------------------------------------------------------


def test_a_refusal_that_handed_out_nothing_is_asked_again() -> None:
    async def scene(the: Scene) -> None:
        await the.open()
        the.proxy.faults["next"].extend(BUSY)
        assert [the.sequencer.next(), the.sequencer.next()] == [1, 2]
        assert the.proxy.count("next") == 4
        assert await the.sequencer.close() == Closed(2)
        assert the.sequencer.failure is None

    play(scene)


@pytest.mark.parametrize("fault", [LOST, Fault(200, happens=True)], ids=["broken", "garbled"])
def test_an_id_whose_answer_is_lost_is_not_asked_for_again(fault: Fault) -> None:
    """It is out: a second request would get another, and this one would be nobody's."""

    async def scene(the: Scene) -> None:
        await the.open()
        assert the.sequencer.next() == 1
        the.proxy.faults["next"].append(fault)
        for _ in range(2):
            with pytest.raises(ProxyFailedError, match="answer was lost"):
                the.sequencer.next()
        assert the.proxy.count("next") == 2
        assert the.sequencer.failure == proxy_sequencer.NO_ANSWER
        # The end tells of it: a hole in the log.
        assert await the.sequencer.close() == Closed(2)

    play(scene)


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        pytest.param(Fault(404), proxy_sequencer.RESTARTED, id="restarted"),
        pytest.param(Fault(410), proxy_sequencer.CLOSED_EARLY, id="closed by the proxy"),
        pytest.param(Fault(500), "the proxy answered 500", id="an error of the proxy's"),
        pytest.param(Fault(429), proxy_sequencer.BUSY, id="full for too long"),
        pytest.param(Fault(503, retry_after="60"), proxy_sequencer.BUSY, id="full for a minute"),
    ],
)
def test_where_no_id_is_to_be_had_the_attempt_has_failed(fault: Fault, why: str) -> None:
    async def scene(the: Scene) -> None:
        await the.open()
        the.proxy.faults["next"].extend([fault] * 50)
        with pytest.raises(ProxyFailedError, match=why):
            the.sequencer.next()
        the.proxy.faults["next"].clear()
        with pytest.raises(ProxyFailedError, match=why):
            the.sequencer.next()
        assert the.sequencer.failure == why
        assert await the.sequencer.close() == Closed(0)

    play(scene, SHORT)


def test_a_proxy_that_is_lost_is_a_failure_and_no_repeat() -> None:
    async def scene(the: Scene) -> None:
        await the.open()
        assert the.sequencer.next() == 1
        the.proxy.kill()
        with pytest.raises(ProxyFailedError):
            the.sequencer.next()
        the.proxy.start()
        with pytest.raises(ProxyFailedError):
            the.sequencer.next()
        assert await the.sequencer.close() == Closed(None, proxy_sequencer.RESTARTED)

    play(scene, SHORT)


def test_an_attempt_that_has_ended_gives_none() -> None:
    async def scene(the: Scene) -> None:
        await the.open()
        the.sequencer.next()
        assert await the.sequencer.close() == Closed(1)
        with pytest.raises(AttemptClosedError, match=ID):
            the.sequencer.next()
        assert the.sequencer.failure is None

    play(scene)


def test_the_end_interrupts_a_wait_for_an_id() -> None:
    async def scene(the: Scene) -> None:
        await the.open()
        the.proxy.always["next"] = Fault(429, retry_after="30")
        errors: list[Exception] = []

        def take() -> None:
            try:
                the.sequencer.next()
            except AttemptClosedError as error:
                errors.append(error)

        thread = threading.Thread(target=take)
        thread.start()
        await until(lambda: the.proxy.count("next") == 1)
        assert await the.sequencer.close() == Closed(0)
        await asyncio.to_thread(thread.join)
        assert len(errors) == 1
        assert the.sequencer.failure is None

    play(scene, Patience(next_s=60))


# --- close -----------------------------------------------------------------------------------------------


def test_the_end_counts_the_ids_of_others_and_tells_of_their_failure() -> None:
    async def scene(the: Scene) -> None:
        await the.open()
        the.proxy.attempts[ID].last = 7
        assert the.sequencer.next() == 8
        the.proxy.attempts[ID].last = 9
        the.proxy.attempts[ID].failure = "1 records were not acknowledged: too old"
        assert the.sequencer.last == 8
        assert await the.sequencer.close() == Closed(9, "1 records were not acknowledged: too old")

    play(scene)


def test_closing_is_repeated_until_there_is_an_answer() -> None:
    async def scene(the: Scene) -> None:
        await the.open()
        the.sequencer.next()
        the.proxy.faults["close"].extend([*BUSY, LOST, Fault(502)])
        assert await the.sequencer.close() == Closed(1)
        assert the.proxy.count("close") == 5

    play(scene)


def test_kafka_is_waited_for_longer_than_a_silent_proxy() -> None:
    async def scene(the: Scene) -> None:
        await the.open()
        the.proxy.faults["close"].extend([Fault(503)] * 4)
        assert await the.sequencer.close() == Closed(0)

    play(scene, Patience(next_s=0.01))


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        pytest.param(Fault(404), proxy_sequencer.RESTARTED, id="restarted"),
        pytest.param(Fault(), proxy_sequencer.LOST, id="silent"),
        pytest.param(Fault(500), "the proxy answered 500", id="errors"),
        pytest.param(Fault(503), "the proxy answered 503", id="no Kafka"),
        pytest.param(Fault(401), "refuses the runner", id="a key that is none any more"),
        pytest.param(Fault(200), proxy_sequencer.NOT_UNDERSTOOD, id="garbled"),
        pytest.param(
            Fault(200, body='{"last_sequence_id": -1}'), proxy_sequencer.NOT_UNDERSTOOD, id="below 0"
        ),
    ],
)
def test_an_end_that_is_not_known_says_why(fault: Fault, why: str) -> None:
    async def scene(the: Scene) -> None:
        await the.open()
        the.sequencer.next()
        the.proxy.always["close"] = fault
        closed = await the.sequencer.close()
        assert closed.last_sequence_id is None
        assert why in (closed.failure or "")
        assert the.sequencer.failure == closed.failure

    play(scene, SHORT)


def test_a_failure_is_logged_once_and_without_keys() -> None:
    async def scene(the: Scene) -> None:
        await the.open()
        the.proxy.kill()
        with capture_logs() as logs:
            for _ in range(2):
                with pytest.raises(ProxyFailedError):
                    the.sequencer.next()
            await the.sequencer.close()
        (entry,) = logs
        assert (entry["event"], entry["attempt_id"]) == ("proxy failed an attempt", ID)
        assert KEY not in str(entry)
        assert "token" not in str(entry)

    play(scene, SHORT)

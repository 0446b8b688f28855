"""Attempts at a proxy with many calls at once, and an account of what was recorded of them."""

import asyncio
import random
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from tests.builders import CODEC
from tests.chaos.proxy_calls import PLANTED, Call, make, make_call
from tests.proxy.fake_vllm import said

from headrace.schemas.ids import uuid7
from headrace.schemas.records import Generation, Span
from headrace.schemas.topics import topic_name
from headrace.streams.client.tail import Place, Tail
from headrace.streams.settings import KafkaSettings

_NUMBER = re.compile(rf"{PLANTED}-(\d+)-")
_WORDS = re.compile(r"w\d+ w\d+ ")


@dataclass
class TriedAttempt:
    attempt_id: str
    rollout_id: str
    token: str
    taken: list[int] = field(default_factory=list)
    """Ids that were asked for, as a runner does."""
    is_told_to_close: bool = False
    last: int = -1
    failure: str | None = None


class Load:
    """Opens attempts, calls, and closes them, in the test's own loop."""

    def __init__(self, url: str, key: str, session: aiohttp.ClientSession, rng: random.Random) -> None:
        self.url = url
        self.rng = rng
        self.session = session
        self.calls: list[Call] = []
        self.attempts: dict[str, TriedAttempt] = {}
        self.on_end: Callable[[Call, TriedAttempt], None] = lambda _call, _attempt: None
        """Hears of each call whose answer the client has whole."""
        self._key = {"authorization": f"Bearer {key}"}

    async def open(self) -> TriedAttempt:
        rollout_id, attempt_id = uuid7(), uuid7()
        opened = await self._post("/attempts", {"rollout_id": rollout_id, "attempt_id": attempt_id})
        attempt = TriedAttempt(attempt_id, rollout_id, opened["token"])
        self.attempts[attempt_id] = attempt
        return attempt

    async def call(self, attempt: TriedAttempt, **told: Any) -> Call:
        call = make_call(self.rng, len(self.calls), attempt.attempt_id)
        for name, value in told.items():
            setattr(call, name, value)
        self.calls.append(call)
        await make(self.session, self.url, attempt.token, call)
        call.was_closed = attempt.is_told_to_close
        if call.is_whole:
            self.on_end(call, attempt)
        return call

    async def take(self, attempt: TriedAttempt) -> None:
        """None is handed out by an attempt that another worker has told to close meanwhile."""
        answer = await self._post(f"/attempts/{attempt.attempt_id}/next", None, attempt)
        if answer is not None:
            attempt.taken.append(answer["sequence_id"])

    async def close(self, attempt: TriedAttempt) -> None:
        """Again and again while Kafka has not everything."""
        attempt.is_told_to_close = True
        closed = await self._post(f"/attempts/{attempt.attempt_id}/close", None)
        attempt.last, attempt.failure = closed["last_sequence_id"], closed["failure"]

    async def run(self, num_calls: int, num_workers: int, closes_at: int) -> None:
        """An attempt from its start to its end; `closes_at`: as so many calls have begun."""
        attempt = await self.open()
        numbers = iter(range(num_calls))
        closing: list[asyncio.Task[None]] = []

        async def work() -> None:
            for number in numbers:
                if number == closes_at:
                    closing.append(asyncio.create_task(self.close(attempt)))
                elif number % 16 == 0 and not attempt.is_told_to_close:
                    await self.take(attempt)
                await self.call(attempt)

        async with asyncio.TaskGroup() as group:
            for _ in range(num_workers):
                group.create_task(work())
        await asyncio.gather(*closing)
        await self.close(attempt)

    async def _post(self, path: str, body: Any, attempt: TriedAttempt | None = None) -> Any:
        """None if the attempt has ended as it was told to."""
        while True:
            async with self.session.post(self.url + path, json=body, headers=self._key) as response:
                if response.status in (200, 201):
                    return await response.json()
                if response.status == 410 and attempt is not None and attempt.is_told_to_close:
                    return None
                assert response.status == 503, (path, response.status)


@asynccontextmanager
async def a_load(url: str, key: str, rng: random.Random) -> AsyncIterator[Load]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, trust_env=False) as session:
        yield Load(url, key, session, rng)


@dataclass(frozen=True)
class Kept:
    """A span as Kafka has it."""

    span: Span
    place: Place
    offset: int

    @property
    def generation(self) -> Generation:
        assert self.span.generation is not None
        return self.span.generation


def read_spans(kafka: KafkaSettings) -> list[Kept]:
    with Tail(kafka, name="audit") as tail:
        places = tail.places(topic_name(Span, kafka.topic_prefix))
        records = list(tail.read(tail.beginnings(places), tail.ends(places)))
    return [Kept(CODEC.decode(each.value, Span), each.place, each.offset) for each in records]


def audit(
    kept: Sequence[Kept],
    calls: Sequence[Call],
    attempts: Mapping[str, TriedAttempt],
    *,
    is_kafka_there: bool = True,
) -> Counter[str]:
    """Assert that what was recorded is what happened; return what was counted. While Kafka is not there,
    a call that nobody disturbed may have failed for that.
    """
    check_ids(kept, attempts)
    of_call: dict[int, list[Kept]] = defaultdict(list)
    for each in kept:
        if each.span.generation is not None:
            number = _NUMBER.search(each.generation.request)
            assert number is not None, each.span
            of_call[int(number[1])].append(each)
            check_span(each)
    for call in calls:
        check_call(call, of_call.pop(call.number, []))
        if call.is_undisturbed and not call.is_whole:
            assert not is_kafka_there, call
            assert "Kafka" in call.error, call
            assert call.retry_after or call.status == 200, call
    assert not of_call
    reasons = Counter(
        each.generation.why_untrainable() or "trainable" for each in kept if each.span.generation
    )
    return reasons + Counter(void=sum(each.span.kind == "void" for each in kept))


def check_ids(kept: Sequence[Kept], attempts: Mapping[str, TriedAttempt]) -> None:
    """G2: each id is a span's, or void, or the runner's; each once. Of an attempt that has failed some may
    have been lost, and what Kafka took after all may be there beside its void.
    """
    found: dict[str, list[int]] = {attempt_id: [] for attempt_id in attempts}
    for each in kept:
        found[each.span.attempt_id].append(each.span.sequence_id or 0)
    for attempt in attempts.values():
        ids, expected = found[attempt.attempt_id] + attempt.taken, range(1, attempt.last + 1)
        if attempt.failure is None:
            assert sorted(ids) == list(expected), attempt
        else:
            assert set(ids) <= set(expected), attempt


def check_span(each: Kept) -> None:
    """Only what is whole can be trained on, and it is what the engine said."""
    span, made = each.span, each.generation
    is_trainable = made.why_untrainable() is None
    assert span.status == "ok" or not is_trainable
    answer_id = span.attributes.get("gen_ai.response.id")
    if answer_id is None:
        assert not is_trainable
        return
    what = said(answer_id, made.choice_index)
    assert made.response_token_ids == what.ids[: len(made.response_token_ids)]
    assert made.response_logprobs == what.logprobs[: len(made.response_logprobs)]
    if is_trainable:
        assert len(made.response_token_ids) == len(made.response_logprobs) == len(what.ids)
        assert made.prompt_token_ids == what.prompt
        assert made.finish_reason == "stop"
        assert what.text in made.response


def check_call(call: Call, kept: Sequence[Kept]) -> None:
    indices = sorted(each.generation.choice_index for each in kept)
    assert indices == list(range(len(indices))), call
    assert len(indices) <= call.num_choices, call
    if not call.is_whole:
        return
    assert kept, call
    for index, text in call.texts.items():
        if text:
            answer_id = kept[0].span.attributes["gen_ai.response.id"]
            assert text == said(answer_id, index).text, call
            assert index in indices, call
    if call.is_undisturbed:
        assert len(indices) == len(call.texts) == call.num_choices, call
        assert all(each.generation.why_untrainable() is None for each in kept), call


def check_log(log: str, secrets: Sequence[str]) -> None:
    """Neither prompts nor completions, nor any secret."""
    assert PLANTED not in log
    assert not _WORDS.search(log)
    for secret in secrets:
        assert secret not in log

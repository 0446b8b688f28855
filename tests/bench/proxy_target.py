"""The proxy under load, its attempts, and what must be in Kafka when they have ended."""

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
from confluent_kafka import Consumer, TopicPartition
from tests.bench.parts import Lane
from tests.bench.proxy_load import Place
from tests.bench.watch import Watch, wait_until

from headrace.cli.stack.ports import pick
from headrace.schemas.codec import Codec
from headrace.schemas.errors import FatalError
from headrace.schemas.ids import uuid7
from headrace.schemas.records import Span

ATTEMPTS_PER_CALLER = 4
_READ_LIMIT_S = 60.0


class Headrace:
    """`headrace proxy` in a process of its own; it ends with the lane."""

    def __init__(self, lane: Lane, upstream: str, *, num_callers: int) -> None:
        port = pick()
        self.lane = lane
        self.url = f"http://127.0.0.1:{port}"
        self._client = lane.processes.enter_context(httpx.Client(base_url=self.url, timeout=30))
        self.process = lane.start("proxy", "--upstream", upstream, "--port", str(port))
        wait_until(self._is_ready, what="a proxy that is ready", processes=[self.process])
        self.callers = [[self._open() for _ in range(ATTEMPTS_PER_CALLER)] for _ in range(num_callers)]

    def close(self) -> dict[str, int]:
        """The last sequence id of each attempt."""
        return {
            attempt_id: self._post(f"/attempts/{attempt_id}/close", token, {})["last_sequence_id"]
            for attempt_id, token in self._attempts()
        }

    def _attempts(self) -> Iterator[tuple[str, str]]:
        for places in self.callers:
            for place in places:
                yield place.path.split("/")[2], place.token

    def _open(self) -> Place:
        opened = self._post("/attempts", "", {"rollout_id": uuid7(), "attempt_id": uuid7()})
        return Place(f"{opened['path']}/v1/chat/completions", opened["token"])

    def _is_ready(self) -> bool:
        try:
            self._client.get("/readyz").raise_for_status()
        except httpx.HTTPError:
            return False
        return True

    def _post(self, path: str, token: str, body: dict[str, str]) -> Any:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return self._client.post(path, json=body, headers=headers).raise_for_status().json()


def check_record(headrace: Headrace, num_calls: int) -> None:
    """FatalError unless Kafka has one span of each call, trainable, and the proxy found nothing to say."""
    last_ids = headrace.close()
    wanted = {(attempt, number) for attempt, last in last_ids.items() for number in range(1, last + 1)}
    if len(wanted) != num_calls:
        raise FatalError(f"the proxy gave ids for {len(wanted)} of {num_calls} calls")
    found: Counter[tuple[str, int | None]] = Counter()
    for span in _spans(headrace.lane):
        why_not = "no call" if span.generation is None else span.generation.why_untrainable()
        if why_not:
            raise FatalError(f"span {span.sequence_id} of {span.attempt_id} is not whole: {why_not}")
        found[span.attempt_id, span.sequence_id] += 1
    if found.keys() != wanted or found.total() != num_calls:
        raise FatalError(f"Kafka has {found.total()} spans of {len(found)} calls, and {num_calls} were made")
    complaints = [line for line in headrace.process.log_path.read_text().splitlines() if _is_complaint(line)]
    if complaints:
        raise FatalError(f"the proxy said {len(complaints)} things, such as {complaints[0]}")


def _is_complaint(line: str) -> bool:
    try:
        return bool(json.loads(line)["level"] != "info")
    except (ValueError, LookupError, TypeError):
        return bool(line.strip())


def _spans(lane: Lane) -> Sequence[Span]:
    topic, codec = lane.topic("spans"), Codec()
    ends = Watch(lane.kafka).ends([topic])
    settings = {"group.id": "reader", "enable.auto.commit": False, "log_level": 0}
    reader = Consumer(settings | lane.kafka.librdkafka())
    spans: list[Span] = []
    deadline = time.monotonic() + _READ_LIMIT_S
    try:
        reader.assign([TopicPartition(topic, number, 0) for _, number in ends])
        while len(spans) < sum(ends.values()):
            if time.monotonic() > deadline:
                raise FatalError(f"{len(spans)} of {sum(ends.values())} spans could be read")
            messages = reader.consume(10_000, timeout=0.2)
            spans += [codec.decode(each.value(), Span) for each in messages if each.error() is None]
    finally:
        reader.close()
    return spans

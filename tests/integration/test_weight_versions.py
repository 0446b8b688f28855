"""C15, G9: while weights are published, each call is stamped with the version that made all its tokens."""

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import pytest
from tests.integration.model_calls import MESSAGES, SAID, made_by
from tests.integration.reference import TOLERANCE, Reference
from tests.integration.serving import ProxyProcess
from tests.pipeline import wait_until
from tests.streams.runner.harness import Rollouts, rollouts_on
from tests.tiny_model import make

from headrace.cli.stack.kafka import KafkaBroker
from headrace.cli.stack.vllm import VllmServer
from headrace.schemas.records import Span
from headrace.streams.settings import KafkaSettings

pytestmark = pytest.mark.integration

CALLERS = 4
# Far above what two computations of one model differ by, far below what two models do.
ANOTHER_MODEL = 0.05


@pytest.fixture
def rollouts(kafka: KafkaBroker, topic_prefix: str, tmp_path: Path) -> Iterator[Rollouts]:
    settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers, topic_prefix=topic_prefix)
    with rollouts_on(settings, tmp_path) as made:
        yield made


class Caller:
    """Calls in several threads, as long as it is not stopped; every other answer is a stream."""

    def __init__(self, base_url: str, model: str) -> None:
        self.num_calls = 0
        self._url = f"{base_url}/v1/chat/completions"
        self._body = {"model": model, "messages": MESSAGES, **SAID, "ignore_eos": True}
        self._stop = threading.Event()

    def run(self, number: int) -> int:
        with httpx.Client(timeout=120, trust_env=False) as client:
            while not self._stop.is_set():
                body = self._body | {"max_tokens": 20 + 40 * number, "stream": bool(self.num_calls % 2)}
                answer = client.post(self._url, json=body)
                assert answer.status_code == 200, answer.text
                assert "error" not in answer.text
                self.num_calls += 1
        return number

    def more(self, number: int) -> None:
        target = self.num_calls + number
        wait_until(lambda: self.num_calls >= target, what=f"{number} more calls")

    def stop(self) -> None:
        self._stop.set()


def places(rollouts: Rollouts) -> dict[str, str]:
    return {
        "HEADRACE_KAFKA_BOOTSTRAP_SERVERS": rollouts.kafka.bootstrap_servers,
        "HEADRACE_KAFKA_TOPIC_PREFIX": rollouts.kafka.topic_prefix,
    }


def publish(rollouts: Rollouts, folder: Path) -> int:
    """The version's number."""
    command = [sys.executable, "-m", "headrace.cli", "resources", "publish", "policy"]
    command += ["--kind", "weights", "--files", str(folder), "--json"]
    environment = {**os.environ, **places(rollouts)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout)["version"])


def test_c15_calls_have_the_version_that_made_them(
    rollouts: Rollouts, vllm_factory: Callable[..., VllmServer], tmp_path: Path
) -> None:
    folders = [make(tmp_path / f"weights-{seed}", seed=seed) for seed in range(3)]
    vllm = vllm_factory(folders[0]).start()
    first = publish(rollouts, folders[1])
    versions = {first: folders[1]}
    with ProxyProcess(tmp_path / "proxy", vllm.endpoint, env=places(rollouts)) as proxy:
        assert has(proxy, first)
        caller = Caller(proxy.open(), vllm.model_name)
        with ThreadPoolExecutor(CALLERS) as pool:
            running = [pool.submit(caller.run, number) for number in range(CALLERS)]
            try:
                for folder in (folders[2], folders[0]):
                    caller.more(3 * CALLERS)
                    number = publish(rollouts, folder)
                    versions[number] = folder
                    wait_until(partial(has, proxy, number), what=f"version {number} in the engine")
                caller.more(3 * CALLERS)
            finally:
                caller.stop()
        assert sorted(each.result() for each in running) == list(range(CALLERS))
        proxy.stop()
        assert proxy.exit_status == 0
    check(rollouts.read(Span), versions, caller.num_calls)


def has(proxy: ProxyProcess, version: int) -> bool:
    return proxy.serves() == f"policy@{version}"


def check(spans: list[Span], versions: dict[int, Path], num_calls: int) -> None:
    references = {number: Reference(folder) for number, folder in versions.items()}
    assert sorted(span.sequence_id or 0 for span in spans) == list(range(1, num_calls + 1))
    counts: Counter[int] = Counter()
    for span in spans:
        made = made_by(span)
        assert made.why_untrainable() is None
        assert made.resource_name == "policy"
        version = made.resource_version
        assert version in references
        counts[version] += 1
        for number, reference in references.items():
            difference = reference.difference(made)
            assert difference < TOLERANCE if number == version else difference > ANOTHER_MODEL
    assert counts.keys() == versions.keys()
    print(f"calls by version: {sorted(counts.items())}")


def test_a_drain_that_ends_cuts_streams_and_what_came_of_them_is_kept(
    rollouts: Rollouts, vllm_factory: Callable[..., VllmServer], tmp_path: Path
) -> None:
    """Their clients hear of it, and their spans are of the old version, as far as they came."""
    folders = [make(tmp_path / f"weights-{seed}", seed=seed) for seed in range(2)]
    vllm = vllm_factory(folders[0]).start()
    first = publish(rollouts, folders[0])
    env = places(rollouts) | {"HEADRACE_PROXY_DRAIN_S": "0.05"}
    with ProxyProcess(tmp_path / "proxy", vllm.endpoint, env=env) as proxy:
        assert has(proxy, first)
        url = f"{proxy.open()}/v1/chat/completions"
        body = {"model": vllm.model_name, "messages": MESSAGES, "ignore_eos": True, "stream": True}
        streams = Streams(url, body | {"max_tokens": 1500})
        with ThreadPoolExecutor(CALLERS) as pool:
            running = [pool.submit(streams.run) for _ in range(CALLERS)]
            try:
                wait_until(lambda: streams.num_pieces > CALLERS, what="streams that run")
                second = publish(rollouts, folders[1])
                wait_until(partial(has, proxy, second), what="the new version in the engine")
            finally:
                streams.stop.set()
        cut = [text for each in running if (text := each.result()) is not None]
        proxy.stop()
        assert proxy.exit_status == 0
    assert cut
    for text in cut:
        error = json.loads(text.strip().rpartition("data: ")[2])["error"]
        assert error["code"] == "aborted"
    reference = Reference(folders[0])
    spans = [span for span in rollouts.read(Span) if span.status_message == "new_weights"]
    assert len(spans) == len(cut)
    for span in spans:
        made = made_by(span)
        assert made.why_untrainable() == "new_weights"
        assert made.resource_version == first
        assert len(made.response_token_ids) == len(made.response_logprobs)
        assert not made.response_token_ids or reference.difference(made) < TOLERANCE
    assert any(made_by(span).response_token_ids for span in spans)


class Streams:
    """Streams one after another, in several threads, until one of a thread's is cut."""

    def __init__(self, url: str, body: dict[str, object]) -> None:
        self.stop = threading.Event()
        self.num_pieces = 0
        self._url = url
        self._body = body

    def run(self) -> str | None:
        """What came of the one that was cut."""
        with httpx.Client(timeout=120, trust_env=False) as client:
            while not self.stop.is_set():
                text = self._stream(client)
                if '"error"' in text:
                    return text
        return None

    def _stream(self, client: httpx.Client) -> str:
        text = ""
        with client.stream("POST", self._url, json=self._body) as response:
            for piece in response.iter_text():
                text += piece
                self.num_pieces += 1
                if self.stop.is_set() and '"error"' not in text:
                    return ""
        return text

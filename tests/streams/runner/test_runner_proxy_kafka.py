"""A runner as a process on real Kafka, with a proxy that numbers events: all of them, densely (G2)."""

import re
import shlex
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.pipeline import wait_until
from tests.streams.runner.fake_proxy import KEY, FakeProxy, a_fake_proxy
from tests.streams.runner.harness import HERE, Rollouts, RunnerProcess

from headrace.schemas.records import Reward, Span
from headrace.streams.runner import proxy_sequencer

pytestmark = pytest.mark.integration

NODE = f"node {shlex.quote(str(HERE / 'agent.js'))}"
SHELL = f"sh {shlex.quote(str(HERE / 'agent.sh'))}"


@pytest.fixture
def proxy(rollouts: Rollouts) -> Iterator[FakeProxy]:
    lock = threading.Lock()

    def publish(span: Span) -> None:
        with lock:
            rollouts.publisher.publish(span)
            rollouts.publisher.flush()

    with a_fake_proxy(publish) as made:
        yield made


def start(rollouts: Rollouts, proxy: FakeProxy, *arguments: str, **env: str) -> RunnerProcess:
    env |= {"HEADRACE_RUNNER_PROXY_KEY": KEY, "HEADRACE_RUNNER_PROXY_TIMEOUT_S": "2"}
    return rollouts.runner(*arguments, "--proxy", proxy.url, number=1, **env)


@pytest.mark.parametrize("agent", ["scripted:sync", "scripted:asynchronous"])
def test_calls_spans_and_rewards_are_dense(rollouts: Rollouts, proxy: FakeProxy, agent: str) -> None:
    start(rollouts, proxy, agent, "--concurrency", "4", HEADRACE_RUNNER_AGENT_NAME="solver")
    ids = rollouts.enqueue(*[{"do": "call", "num_calls": 3}] * 8)
    finals = rollouts.wait_final(ids)
    assert {final.attempt_status for final in finals.values()} == {"succeeded"}
    ends = {end.rollout_id: end for (end,) in rollouts.ends().values()}
    # Twice a call, a tool's span and a reward each time, and the outcome.
    assert {ends[rollout_id].last_sequence_id for rollout_id in ids} == {13}
    rollouts.check_sequences()
    assert len([span for span in rollouts.read(Span) if span.name == "chat"]) == 8 * 6
    assert len([reward for reward in rollouts.read(Reward) if reward.name == "outcome"]) == 8
    assert {body["agent"] for what, body in proxy.requests if what == "open"} == {"solver"}
    assert all(attempt.is_closed for attempt in proxy.attempts.values())


def test_a_command_s_traces_and_rewards_are_numbered_by_the_proxy(
    rollouts: Rollouts, proxy: FakeProxy
) -> None:
    start(rollouts, proxy, "--exec", NODE)
    (rollout_id,) = rollouts.enqueue({"model": "tiny"})
    assert rollouts.wait_final([rollout_id])[rollout_id].attempt_status == "succeeded"
    ((end,),) = rollouts.ends().values()
    assert end.last_sequence_id == proxy.attempts[end.attempt_id].last == 3
    rollouts.check_sequences()


def test_a_command_gets_the_attempt_s_token_and_never_the_key(rollouts: Rollouts, proxy: FakeProxy) -> None:
    start(rollouts, proxy, "--exec", SHELL, OPENAI_API_KEY="theirs")
    (rollout_id,) = rollouts.enqueue({"do": "environment"})
    said = rollouts.wait_final([rollout_id])[rollout_id].error or ""
    (attempt_id,) = proxy.attempts
    base = f"{proxy.url}/a/{attempt_id}"
    assert f"{base}/v1 {base} token-{attempt_id} []" in said
    assert KEY not in said


def test_attempts_of_a_proxy_that_is_restarted_fail_and_others_go_on(
    rollouts: Rollouts, proxy: FakeProxy, tmp_path: Path
) -> None:
    runner = start(rollouts, proxy, "scripted:sync")
    file = tmp_path / "go"
    (lost,) = rollouts.enqueue({"do": "wait", "file": str(file)})
    rollouts.wait_running(lost)
    wait_until(lambda: len(proxy.attempts) == 1, what="the attempt opened")
    proxy.kill()
    proxy.start()
    file.touch()
    final = rollouts.wait_final([lost])[lost]
    assert final.attempt_status == "failed"
    assert re.search(proxy_sequencer.RESTARTED, final.error or "")
    (next_one,) = rollouts.enqueue({"do": "call", "num_calls": 1})
    assert rollouts.wait_final([next_one])[next_one].attempt_status == "succeeded"
    rollouts.check_sequences()
    assert runner.exit_status is None

"""Programs in other languages as agents, on real Kafka."""

import shlex

import pytest
from tests.streams.runner.harness import HERE, Rollouts, assert_one_end_each, rewards_of

from headrace.schemas.records import ResourceVersion, Reward, Span, now

pytestmark = pytest.mark.integration


SHELL = f"sh {shlex.quote(str(HERE / 'agent.sh'))}"
NODE = f"node {shlex.quote(str(HERE / 'agent.js'))}"


def test_what_a_shell_script_does_is_how_its_attempt_ends(rollouts: Rollouts) -> None:
    expected: dict[str, tuple[str, str | None, dict[str, float]]] = {
        "number": ("succeeded", None, {"outcome": 0.5}),
        "object": ("succeeded", None, {"outcome": 1.0, "style": 0.25}),
        "silent": ("succeeded", None, {}),
        "nan": ("failed", "InvalidRewardError: the last line is nan: a finite number is expected", {}),
        "fail": ("failed", "exit status 3: the last words", {}),
        "crash": ("failed", "killed by SIGSEGV", {}),
        "file": ("succeeded", None, {"outcome": 1.0}),
        "unknown": ("failed", "exit status 9", {}),
        "environment": ("failed", "exit status 1: ", {}),
    }
    rollouts.runner(
        "--exec", SHELL, "--base-url", "http://127.0.0.1:9/a/{attempt_id}/v1", OPENAI_API_KEY="key"
    )
    ids = rollouts.enqueue(*({"do": deed} for deed in expected))
    finals = rollouts.wait_final(ids)
    rewards = rewards_of(rollouts)
    for rollout_id, (deed, (status, error, given)) in zip(ids, expected.items(), strict=True):
        assert finals[rollout_id].attempt_status == status, deed
        assert rewards.get(rollout_id, {}) == given, deed
        said = finals[rollout_id].error
        assert said is None if error is None else (said or "").startswith(error), (deed, said)
    told = finals[ids[-1]]
    attempt_id = told.attempt_id
    assert (told.error or "").splitlines() == [
        f"exit status 1: {told.rollout_id} {attempt_id} 1 train task-{told.rollout_id[-4:]}",
        f"http://127.0.0.1:9/a/{attempt_id}/v1 http://127.0.0.1:9/a/{attempt_id} key []",
    ]
    assert_one_end_each(rollouts)
    rollouts.check_sequences()


def test_a_node_program_sends_traces_and_rewards(rollouts: Rollouts) -> None:
    rollouts.runner("--exec", NODE)
    (rollout_id,) = rollouts.enqueue({"model": "tiny"})
    final = rollouts.wait_final([rollout_id])[rollout_id]
    assert final.state == "succeeded", final.error
    (span,) = rollouts.read(Span)
    assert span.generation is not None
    assert (span.sequence_id, span.kind, span.generation.model) == (1, "client", "tiny")
    rewards = {reward.name: reward for reward in rollouts.read(Reward)}
    assert (rewards["style"].sequence_id, rewards["style"].about_sequence_id) == (2, 1)
    assert (rewards["outcome"].sequence_id, rewards["outcome"].value) == (3, 0.75)
    rollouts.check_sequences()


def test_a_command_finds_the_endpoint_among_resources(rollouts: Rollouts) -> None:
    endpoint = ResourceVersion(
        name="llm", version=1, kind="endpoint", uri="http://127.0.0.1:9/v1", time=now()
    )
    rollouts.publisher.publish(endpoint)
    rollouts.publisher.flush()
    rollouts.runner("--exec", SHELL)
    (rollout_id,) = rollouts.enqueue({"do": "environment"})
    final = rollouts.wait_final([rollout_id])[rollout_id]
    assert "http://127.0.0.1:9/v1 http://127.0.0.1:9 " in (final.error or "")


def test_a_command_that_can_not_be_started_says_so(rollouts: Rollouts) -> None:
    rollouts.runner("--exec", "/no/such/agent --now")
    (rollout_id,) = rollouts.enqueue({})
    final = rollouts.wait_final([rollout_id])[rollout_id]
    assert final.error == "can't start /no/such/agent: No such file or directory"

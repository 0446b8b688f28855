"""Runners as processes on real Kafka, with the real dispatcher: every rollout to an honest end."""

import re
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline import wait_until
from tests.streams.runner.harness import HERE, Rollouts, assert_one_end_each, rewards_of
from tests.streams.runner.scripted import CALL
from tests.streams.runner.test_child_process import is_alive

from headrace.schemas.records import AttemptEvent, ResourceVersion, Span, now

pytestmark = pytest.mark.integration

SHELL = f"sh {shlex.quote(str(HERE / 'agent.sh'))}"
NODE = f"node {shlex.quote(str(HERE / 'agent.js'))}"
AGENTS = ["scripted:sync", "scripted:asynchronous"]

CHAT = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "tiny",
    "headrace.prompt_token_ids": [1, 2],
    "headrace.response_token_ids": [3],
    "headrace.response_logprobs": [-0.5],
}
STEPS: dict[str, tuple[dict[str, Any], str, str | None, dict[str, float], int]] = {
    # What a task says: how the attempt ends, its error, its rewards, how many events it has.
    "returns a number": ({"do": "return", "value": 0.5}, "succeeded", None, {"outcome": 0.5}, 1),
    "returns 0": ({"do": "return", "value": 0}, "succeeded", None, {"outcome": 0.0}, 1),
    "returns None": ({"do": "return", "value": None}, "succeeded", None, {}, 0),
    "returns names": ({"do": "return", "value": {"x": 2}}, "succeeded", None, {"x": 2.0}, 1),
    "returns text": ({"do": "return", "value": "1"}, "failed", "the agent returned str", {}, 0),
    "returns NaN": ({"do": "nan"}, "failed", "'outcome' is nan: a finite number", {}, 0),
    "emits NaN": ({"do": "nan by name"}, "failed", "'style' is nan", {}, 1),
    "raises": ({"do": "raise"}, "failed", r"ValueError: as the task says \(scripted.py:\d+ in act\)", {}, 0),
    "calls exit": ({"do": "exit"}, "failed", "SystemExit: 3", {}, 0),
    "works": ({"do": "work"}, "succeeded", None, {"style": 0.25, "outcome": 1.0}, 4),
    "emits its outcome": ({"do": "emit"}, "succeeded", None, {"outcome": 0.75}, 2),
    "makes a bad span": ({"do": "catch"}, "succeeded", None, {"outcome": 1.0}, 3),
    "is instrumented": ({"do": "otel", "attributes": CHAT}, "succeeded", None, {"outcome": 1.0}, 3),
}  # fmt: skip


@pytest.mark.parametrize("agent", AGENTS)
def test_what_a_function_does_is_how_its_attempt_ends(rollouts: Rollouts, agent: str) -> None:
    rollouts.runner(agent)
    ids = rollouts.enqueue(*(step[0] for step in STEPS.values()))
    finals = rollouts.wait_final(ids)
    rewards = rewards_of(rollouts)
    ends = {each[0].rollout_id: each[0] for each in rollouts.ends().values()}
    for name, rollout_id in zip(STEPS, ids, strict=True):
        _, status, error, expected, num_events = STEPS[name]
        assert finals[rollout_id].attempt_status == status, name
        assert rewards.get(rollout_id, {}) == expected, name
        assert ends[rollout_id].last_sequence_id == num_events, name
        said = finals[rollout_id].error
        assert said is None if error is None else re.search(error, said or ""), (name, said)
    assert_one_end_each(rollouts)
    rollouts.check_sequences()
    wait_until(lambda: rollouts.runners_lag() == 0, what="all tasks committed")
    spans = {(span.rollout_id, span.name): span for span in rollouts.read(Span)}
    worked, instrumented = (ids[list(STEPS).index(name)] for name in ("works", "is instrumented"))
    assert spans[worked, "chat"].generation == CALL
    chat = spans[instrumented, "chat"]
    assert chat.generation is not None
    assert (chat.sequence_id, chat.generation.agent, chat.generation.response_token_ids) == (
        2,
        "solver",
        (3,),
    )
    assert chat.parent_span_id == spans[instrumented, "invoke_agent"].span_id


def test_the_start_tells_the_assembler_of_the_rollout(rollouts: Rollouts) -> None:
    rollouts.runner("scripted:sync")
    config: dict[str, Any] = {
        "accept": ("succeeded", "timeout"),
        "reward_grace_s": 7.0,
        "credit_rule": "per_step@1",
        "agents": ("solver",),
    }
    (rollout_id,) = rollouts.enqueue({"do": "return", "value": 1}, **config)
    rollouts.wait_final([rollout_id])
    started, *_ = (event for event in rollouts.read(AttemptEvent) if event.kind == "started")
    assert started.origin is not None
    assert {name: getattr(started.origin, name) for name in config} == config
    assert (started.origin.group_id, started.origin.dispatched) == (rollout_id, True)
    assert started.origin.task_id == f"task-{rollout_id[-4:]}"
    assert (started.status, started.attempt) == ("running", 1)
    assert started.runner_id


def test_resources_are_the_newest_or_the_pinned(rollouts: Rollouts) -> None:
    def publish(version: int) -> None:
        made = ResourceVersion(name="hint", version=version, kind="prompt", content="think", time=now())
        rollouts.publisher.publish(made)
        rollouts.publisher.flush()

    publish(1)
    publish(2)
    rollouts.runner("scripted:asynchronous")
    newest, pinned, absent = (
        *rollouts.enqueue({"do": "resource"}),
        *rollouts.enqueue({"do": "resource"}, resources={"hint": 1}),
        *rollouts.enqueue({"do": "resource"}, resources={"absent": 1}),
    )
    finals = rollouts.wait_final([newest, pinned, absent])
    rewards = rewards_of(rollouts)
    assert rewards[newest] == {"outcome": 2.0}
    assert rewards[pinned] == {"outcome": 1.0}
    assert finals[absent].attempt_status == "failed"
    assert "absent" in (finals[absent].error or "")
    publish(3)
    (later,) = rollouts.enqueue({"do": "resource"}, resources={"hint": 3})
    rollouts.wait_final([later])
    assert rewards_of(rollouts)[later] == {"outcome": 3.0}


# --- deadlines -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent", "deed"),
    [
        ("scripted:sync", "hang"),
        ("scripted:asynchronous", "hang"),
        ("scripted:asynchronous", "stubborn"),
        ("scripted:asynchronous", "block"),
    ],
)
def test_a_hung_agent_ends_at_its_deadline_and_others_go_on(
    rollouts: Rollouts, agent: str, deed: str
) -> None:
    rollouts.runner(agent, "--concurrency", "2")
    (hung,) = rollouts.enqueue({"do": deed}, timeout_s=1.0, heartbeat_timeout_s=0.9)
    rollouts.wait_running(hung)
    finals = rollouts.wait_final([hung])
    assert (finals[hung].state, finals[hung].attempt_status) == ("failed", "timeout")
    assert finals[hung].error == "the agent did not end within 1 s"
    others = rollouts.enqueue(*[{"do": "return", "value": 1}] * 5)
    rollouts.wait_final(others)
    # It was the runner that ended it, and heartbeats went on till then.
    events = [event for event in rollouts.read(AttemptEvent) if event.rollout_id == hung]
    kinds = [event.kind for event in events]
    assert kinds[0] == "started"
    assert kinds[-1] == "ended"
    assert kinds.count("heartbeat") >= 2
    assert len({event.runner_id for event in events}) == 1
    assert events[-1].last_sequence_id == 0


def test_a_hung_command_is_killed_with_its_group(rollouts: Rollouts, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    rollouts.runner("--exec", SHELL, MARKS=str(marks))
    (hung,) = rollouts.enqueue({"do": "hang"}, timeout_s=0.5)
    finals = rollouts.wait_final([hung])
    assert (finals[hung].state, finals[hung].attempt_status) == ("failed", "timeout")
    pids = [int(pid) for pid in marks.read_text().split()]
    assert len(pids) == 2
    wait_until(lambda: not any(map(is_alive, pids)), what="the group to be gone")
    assert_one_end_each(rollouts)


def test_a_timeout_is_tried_again_where_the_rollout_wants_it(rollouts: Rollouts) -> None:
    rollouts.runner("scripted:asynchronous")
    (hung,) = rollouts.enqueue({"do": "hang"}, timeout_s=0.3, retry_on=("timeout",), max_attempts=3)
    final = rollouts.wait_final([hung])[hung]
    assert (final.state, final.attempt, final.attempt_status) == ("failed", 3, "timeout")
    ends = [each for ends in rollouts.ends().values() for each in ends]
    assert sorted(end.attempt for end in ends) == [1, 2, 3]
    assert len({end.attempt_id for end in ends}) == 3


def test_with_too_many_hung_threads_the_runner_ends_and_says_why(rollouts: Rollouts) -> None:
    runner = rollouts.runner("scripted:sync", "--concurrency", "4", HEADRACE_RUNNER_MAX_ABANDONED="3")
    hung = rollouts.enqueue(*[{"do": "hang"}] * 3, timeout_s=0.5)
    rollouts.wait_final(hung)
    assert runner.wait() == 1
    assert "3 agents did not end with their attempts" in runner.tail()
    assert_one_end_each(rollouts)


def test_what_a_thread_emits_after_the_end_is_refused(rollouts: Rollouts, tmp_path: Path) -> None:
    refused = tmp_path / "refused"
    rollouts.runner("scripted:sync")
    (rollout_id,) = rollouts.enqueue({"do": "late", "file": str(refused)})
    rollouts.wait_final([rollout_id])
    wait_until(lambda: refused.exists() and refused.read_text() != "", what="the late reward")
    assert refused.read_text() == "AttemptClosedError"
    assert rewards_of(rollouts)[rollout_id] == {"outcome": 1.0}


# --- cancellation ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [["scripted:sync"], ["scripted:asynchronous"], ["--exec", SHELL]], ids=str
)
def test_a_cancelled_rollout_is_stopped_where_it_runs(
    rollouts: Rollouts, arguments: list[str], tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    runner = rollouts.runner(*arguments, MARKS=str(marks))
    (rollout_id,) = rollouts.enqueue({"do": "hang"})
    rollouts.wait_running(rollout_id)
    if "--exec" in arguments:
        wait_until(lambda: marks.exists() and len(marks.read_text().split()) == 2, what="the command")
    rollouts.cancel(rollout_id)
    final = rollouts.wait_final([rollout_id])[rollout_id]
    assert (final.state, final.attempt_status) == ("cancelled", "cancelled")
    # The runner's own end comes late, and the log has it (G7).
    wait_until(lambda: len(next(iter(rollouts.ends().values()))) == 2, what="the runner's end")
    ((first, second),) = rollouts.ends().values()
    assert (first.runner_id, second.status) == ("dispatcher", "cancelled")
    assert second.runner_id != "dispatcher"
    if "--exec" in arguments:
        pids = [int(pid) for pid in marks.read_text().split()]
        wait_until(lambda: not any(map(is_alive, pids)), what="the command to be gone")
    runner.send(signal.SIGTERM)
    assert runner.wait() == 0


def test_a_rollout_cancelled_in_the_queue_is_not_run(rollouts: Rollouts, tmp_path: Path) -> None:
    go, begun = tmp_path / "go", tmp_path / "begun"
    rollouts.runner("scripted:asynchronous", "--concurrency", "1")
    (first,) = rollouts.enqueue({"do": "wait", "file": str(go)})
    rollouts.wait_running(first)
    queued = rollouts.enqueue(*[{"do": "return", "value": 1, "begun": str(begun)}] * 5)
    wait_until(lambda: len(rollouts.states()) == 6, what="the queue")
    rollouts.cancel(*queued)
    finals = rollouts.wait_final(queued)
    assert {final.state for final in finals.values()} == {"cancelled"}
    go.touch()
    rollouts.wait_final([first])
    wait_until(lambda: rollouts.runners_lag() == 0, what="all tasks committed")
    assert not begun.exists()


# --- the end of a runner ---------------------------------------------------------------------------------


def test_sigterm_lets_attempts_finish_and_hands_the_rest_on(rollouts: Rollouts, tmp_path: Path) -> None:
    go = tmp_path / "go"
    runner = rollouts.runner("scripted:asynchronous", "--concurrency", "2", "--drain-timeout", "20")
    short, *queued = rollouts.enqueue(
        {"do": "wait", "file": str(go)}, {"do": "wait", "file": str(go)}, {"do": "emit"}
    )
    rollouts.wait_running(short, queued[0])
    runner.send(signal.SIGTERM)
    wait_until(lambda: "draining" in runner.tail(), what="the drain")
    other = rollouts.runner("scripted:asynchronous", number=2)
    # The other gets what was not started while the first still runs.
    rollouts.wait_final([queued[1]])
    assert runner.exit_status is None
    go.touch()
    rollouts.wait_final([short, queued[0]])
    assert runner.wait() == 0
    assert other.exit_status is None
    states = rollouts.states()
    assert {state.state for state in states.values()} == {"succeeded"}
    assert {state.attempt for state in states.values()} == {1}
    assert_one_end_each(rollouts)


@pytest.mark.parametrize(
    "arguments", [["scripted:sync"], ["scripted:asynchronous"], ["--exec", SHELL]], ids=str
)
def test_what_does_not_finish_in_time_is_tried_again_elsewhere(
    rollouts: Rollouts, arguments: list[str], tmp_path: Path
) -> None:
    runner = rollouts.runner(*arguments, "--drain-timeout", "0.2", MARKS=str(tmp_path / "marks"))
    (rollout_id,) = rollouts.enqueue({"do": "hang"})
    rollouts.wait_running(rollout_id)
    runner.send(signal.SIGTERM)
    assert runner.wait() == 0
    wait_until(lambda: rollouts.states()[rollout_id].state == "requeuing", what="another try")
    state = rollouts.states()[rollout_id]
    assert (state.attempt_status, state.error) == ("unresponsive", "the runner was stopped")
    ((end,),) = rollouts.ends().values()
    assert end.last_sequence_id == 0


def test_a_second_signal_ends_at_once(rollouts: Rollouts) -> None:
    runner = rollouts.runner("scripted:asynchronous", "--drain-timeout", "600")
    (rollout_id,) = rollouts.enqueue({"do": "hang"})
    rollouts.wait_running(rollout_id)
    runner.send(signal.SIGINT)
    wait_until(lambda: "draining" in runner.tail(), what="the drain")
    runner.send(signal.SIGTERM)
    assert runner.wait() == 0
    wait_until(lambda: rollouts.states()[rollout_id].state == "requeuing", what="another try")


@pytest.mark.chaos
@pytest.mark.parametrize("agent", [*AGENTS, "exec"])
def test_a_killed_runner_costs_only_its_attempts(rollouts: Rollouts, agent: str, tmp_path: Path) -> None:
    marks, go = tmp_path / "marks", tmp_path / "go"
    script = f"""[ -e {go} ] && echo 1 && exit
sh -c 'while :; do sleep 0.05; done' &
echo "$$ $!" >> "$MARKS"
while ! [ -e {go} ]; do sleep 0.02; done
echo 1"""
    exec_it = ["--exec", f"sh -c {shlex.quote(script)}"]
    arguments = exec_it if agent == "exec" else [agent]
    first = rollouts.runner(*arguments, "--concurrency", "10", MARKS=str(marks))
    ids = rollouts.enqueue(*[{"do": "wait", "file": str(go)}] * 30, heartbeat_timeout_s=1.0)
    rollouts.wait_some_running(10)
    if agent == "exec":
        wait_until(lambda: len(marks.read_text().split()) == 20, what="the commands")
    pids = [int(pid) for pid in marks.read_text().split()] if marks.exists() else []
    first.kill()
    go.touch()
    rollouts.runner(*arguments, "--concurrency", "10", number=2, MARKS=str(marks))
    finals = rollouts.wait_final(ids)
    assert {final.state for final in finals.values()} == {"succeeded"}
    again = [final for final in finals.values() if final.attempt > 1]
    assert len(again) <= 10
    assert all(final.attempt == 2 for final in again)
    assert_one_end_each(rollouts)
    rollouts.check_sequences()
    wait_until(lambda: not any(map(is_alive, pids)), what="the commands to be gone")
    wait_until(lambda: rollouts.runners_lag() == 0, what="all tasks committed")

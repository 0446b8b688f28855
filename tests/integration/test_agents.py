"""Agents of other people's frameworks, unchanged but for their base URL, on the whole pipeline.

Each is an example of `proxy/examples`, run by `headrace runner` against a real model: rollouts go in, and
trajectories with every call of the model come out, complete, in order, and fit to train on.
"""

import json
import shlex
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.integration.serving import ProxyProcess
from tests.pipeline import Pipeline, wait_until
from tests.streams.runner.harness import RUNNER, Rollouts, rollouts_on

from headrace.cli.stack.clickhouse import ClickHouseServer
from headrace.cli.stack.kafka import KafkaBroker
from headrace.cli.stack.processor import ProcessorProcess
from headrace.cli.stack.vllm import VllmServer
from headrace.schemas.records import Span, Trajectory
from headrace.streams.settings import ClickHouseSettings, KafkaSettings

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).parents[2] / "proxy" / "examples"
FETCH = f"node {shlex.quote(str(EXAMPLES / 'fetch_agent.mjs'))}"
AGENTS = [
    pytest.param(["langgraph_agent:solve"], "openai_chat", id="LangGraph"),
    pytest.param(["openai_agents_agent:solve"], "openai_responses", id="OpenAI Agents SDK"),
    pytest.param(["autogen_agent:solve"], "openai_chat", id="AutoGen"),
    pytest.param(["--exec", FETCH], "openai_chat", id="Node"),
]
# Behind no door: such a rollout goes on until its turns are over.
NOWHERE = "none"
TURNS = 3


@dataclass
class Stack:
    """Dispatcher, assembler, sink and proxy; runners come and go."""

    pipeline: Pipeline
    rollouts: Rollouts
    proxy: ProxyProcess
    model_name: str

    def runner(self, *arguments: str) -> ProcessorProcess:
        """As the examples' README starts it. One at a time: they would share the rollouts."""
        folder = self.pipeline.folder / f"runner-{uuid.uuid4().hex[:6]}"
        env = self.pipeline.places() | RUNNER | {"MODEL": self.model_name}
        where = ["--app-dir", str(EXAMPLES), "--proxy", self.proxy.endpoint]
        return ProcessorProcess("runner", folder, env=env, arguments=[*arguments, *where])


@pytest.fixture(scope="module")
def stack(
    kafka: KafkaBroker,
    clickhouse: ClickHouseServer,
    vllm: VllmServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    name = f"t{uuid.uuid4().hex[:10]}"
    places = (
        KafkaSettings(bootstrap_servers=kafka.bootstrap_servers, topic_prefix=name),
        ClickHouseSettings(port=clickhouse.port, database=name),
    )
    folder = tmp_path_factory.mktemp("agents")
    with Pipeline(*places, folder) as pipeline, rollouts_on(places[0], folder) as rollouts:
        proxy = ProxyProcess(folder / "proxy", vllm.endpoint, env=pipeline.places())
        try:
            for process in (pipeline.assembler(), pipeline.sink(), proxy):
                process.start()
            rollouts.dispatcher()
            yield Stack(pipeline, rollouts, proxy, vllm.model_name)
        finally:
            proxy.stop()
    client = pipeline.client()
    client.command(f"DROP DATABASE {name}")
    client.close()


@pytest.mark.parametrize(("arguments", "dialect"), AGENTS)
def test_an_agent(stack: Stack, arguments: Sequence[str], dialect: str) -> None:
    tasks = [{"prize": prize, "max_turns": TURNS} for prize in (NOWHERE, NOWHERE, "red", "green")]
    with stack.runner(*arguments) as runner:
        ids = stack.rollouts.enqueue(*tasks, timeout_s=120)
        finals = stack.rollouts.wait_final(ids, timeout_s=120)
        assert {final.attempt_status for final in finals.values()} == {"succeeded"}, runner.tail()
        runner.stop()
        assert runner.exit_status == 0, runner.tail()
    stack.rollouts.check_sequences()
    found = trajectories(stack, ids)
    for rollout_id, task in zip(ids, tasks, strict=True):
        check(stack, found[rollout_id], task, dialect)
    check_tables(stack, list(found.values()))


def trajectories(stack: Stack, ids: Sequence[str]) -> dict[str, Trajectory]:
    """By rollout, once all are there."""
    found: dict[str, Trajectory] = {}

    def are_there() -> bool:
        found.update({each.rollout_id: each for each in stack.rollouts.read(Trajectory)})
        return found.keys() >= set(ids)

    wait_until(are_there, what="trajectories")
    return {rollout_id: found[rollout_id] for rollout_id in ids}


def check(stack: Stack, trajectory: Trajectory, task: dict[str, Any], dialect: str) -> None:
    spans = [span for span in stack.rollouts.read(Span) if span.attempt_id == trajectory.attempt_id]
    calls = sorted((span for span in spans if span.generation), key=lambda span: span.sequence_id or 0)
    transitions = trajectory.transitions
    assert (trajectory.accepted, trajectory.reason, trajectory.missing_sequence_ids) == (True, None, ())
    assert [each.sequence_id for each in transitions] == [span.sequence_id for span in calls]
    assert [each.step for each in transitions] == list(range(len(transitions)))
    assert [each.is_last for each in transitions] == [False] * (len(transitions) - 1) + [True]
    assert all(each.trainable for each in transitions), [each.reason for each in transitions]
    if task["prize"] == NOWHERE:
        assert len(transitions) == TURNS
        assert trajectory.outcome == 0
    else:
        assert 1 <= len(transitions) <= TURNS
        assert trajectory.outcome in (0, 1)
    for transition, prompt, span in zip(transitions, trajectory.prompts(), calls, strict=True):
        made = span.generation
        assert made is not None
        assert span.attributes["headrace.dialect"] == dialect
        assert prompt == made.prompt_token_ids
        assert transition.response_token_ids == made.response_token_ids
        assert transition.response_logprobs == made.response_logprobs
        message = json.loads(made.response)["choices"][0]["message"]
        for call in message["tool_calls"]:
            assert call["function"]["name"] == "open_door"
            assert json.loads(call["function"]["arguments"])["door"] in ("red", "green", "blue")
    # Each turn has seen the last one's answer.
    assert [len(each) for each in trajectory.prompts()] == sorted(len(each) for each in trajectory.prompts())


def check_tables(stack: Stack, found: Sequence[Trajectory]) -> None:
    """ClickHouse has a row for each transition, its prompt in full."""
    wanted = {
        (each.attempt_id, transition.step): (list(prompt), list(transition.response_token_ids))
        for each in found
        for transition, prompt in zip(each.transitions, each.prompts(), strict=True)
    }
    attempts = ", ".join(f"'{each.attempt_id}'" for each in found)
    query = (
        "SELECT toString(attempt_id), step, prompt_token_ids, response_token_ids FROM transitions "
        f"WHERE trainable AND toString(attempt_id) IN ({attempts})"
    )
    client = stack.pipeline.client()
    rows: dict[tuple[str, int], tuple[list[int], list[int]]] = {}

    def are_there() -> bool:
        rows.update({(row[0], row[1]): (row[2], row[3]) for row in client.query(query).result_rows})
        return len(rows) == len(wanted)

    try:
        wait_until(are_there, what="transitions in ClickHouse")
    finally:
        client.close()
    assert rows == wanted

"""A proxy killed -9 under a runner's attempts: they fail, are tried again, none trains with holes (G3)."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.chaos.proxy_scene import check_log, read_spans
from tests.pipeline import Pipeline, seeded, wait_until
from tests.proxy.process import ProxyProcess, a_process, upstream_process
from tests.streams.runner.harness import DISPATCHER, RUNNER, Rollouts, rollouts_on

from headrace.cli.stack.processor import ProcessorProcess
from headrace.proxy.keys import add_key
from headrace.schemas.records import AttemptEvent, Span, Trajectory
from headrace.streams.runner.proxy_sequencer import RESTARTED

pytestmark = [pytest.mark.chaos, pytest.mark.integration]

HERE = Path(__file__).parent
NUM_ROLLOUTS = 30
NUM_CALLS = 12
NUM_KILLS = 2
CONCURRENCY = 6


@pytest.fixture
def rollouts(pipeline: Pipeline, tmp_path: Path) -> Iterator[Rollouts]:
    with rollouts_on(pipeline.kafka, tmp_path) as made:
        yield made


def others(pipeline: Pipeline, proxy: ProxyProcess, key: str) -> list[ProcessorProcess]:
    """A dispatcher, an assembler and a runner."""

    def process(name: str, env: dict[str, str], *arguments: str) -> ProcessorProcess:
        folder = pipeline.folder / name
        env = pipeline.places() | {"HEADRACE_HOST_STATE_DIR": str(folder / "state")} | env
        return ProcessorProcess(name, folder, env=env, arguments=arguments)

    agent = ["proxy_agent:play", "--app-dir", str(HERE), "--concurrency", str(CONCURRENCY)]
    key_of = {"HEADRACE_RUNNER_PROXY_KEY": key}
    return [
        process("dispatcher", DISPATCHER),
        pipeline.assembler(),
        process("runner", RUNNER | key_of, *agent, "--proxy", proxy.url),
    ]


def num_spans(pipeline: Pipeline) -> int:
    return pipeline.num_in("spans")


def test_proxy_is_killed(pipeline: Pipeline, rollouts: Rollouts, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    key = add_key(keys, "runner")
    with seeded("proxy killed") as rng, upstream_process() as upstream, ExitStack() as stack:
        proxy = ProxyProcess(
            tmp_path / "proxy", pipeline.kafka, upstream, arguments=["--keys", str(keys)], linger_ms="1"
        )
        stack.enter_context(a_process(proxy))
        proxy.wait_ready()
        processes = others(pipeline, proxy, key)
        for process in processes:
            stack.enter_context(a_process(process))
        task = {"num_calls": NUM_CALLS, "pause_s": 0.05}
        tasks = [task | {"takes_errors": number % 2 == 1} for number in range(NUM_ROLLOUTS)]
        ids = rollouts.enqueue(*tasks, max_attempts=10, retry_on=("failed",), timeout_s=60)
        for number in range(NUM_KILLS):
            # An attempt has as many spans as calls: those that run are somewhere in between.
            target = num_spans(pipeline) + int(rng.uniform(0.5, 1.5) * CONCURRENCY * NUM_CALLS)
            wait_until(lambda target=target: num_spans(pipeline) >= target, what=f"{target} spans")  # type: ignore[misc]
            wait_until(lambda: proxy.metric("headrace_proxy_open_attempts") > 0, what="open attempts")
            proxy.kill()
            proxy.start()
            proxy.wait_ready()
            print(f"killed {number + 1} times")
        finals = rollouts.wait_final(ids)
        assert {final.attempt_status for final in finals.values()} == {"succeeded"}
        wait_until(lambda: pipeline.num_verdicts() == len(rollouts.ends()), what="every verdict")
        wait_until(lambda: pipeline.lag("assembler") == 0, what="no lag of the assembler")
        assert all(process.running for process in (proxy, *processes))
    check_verdicts(rollouts, read_spans_of(pipeline))
    check_log(proxy.log(), [key])


def read_spans_of(pipeline: Pipeline) -> dict[str, list[Span]]:
    """By attempt."""
    found: dict[str, list[Span]] = defaultdict(list)
    for each in read_spans(pipeline.kafka):
        found[each.span.attempt_id].append(each.span)
    return found


def check_verdicts(rollouts: Rollouts, spans: dict[str, list[Span]]) -> None:
    """Whoever was cut off has failed and is not accepted; what is accepted has every call."""
    ends = {attempt_id: end for attempt_id, (end,) in rollouts.ends().items()}
    verdicts = {verdict.attempt_id: verdict for verdict in rollouts.read(Trajectory)}
    assert verdicts.keys() == ends.keys()
    rollouts.check_sequences()
    cut_off = [end for end in ends.values() if end.status == "failed"]
    assert cut_off
    # Those whose agents made nothing of it.
    assert any(RESTARTED in (end.error or "") for end in cut_off)
    for end in cut_off:
        assert not verdicts[end.attempt_id].accepted
    for end in ends.values():
        if end.status == "succeeded":
            check_accepted(verdicts[end.attempt_id], end, spans[end.attempt_id])
    accepted = [verdict for verdict in verdicts.values() if verdict.accepted]
    assert len(accepted) == len({verdict.rollout_id for verdict in accepted}) == NUM_ROLLOUTS


def check_accepted(verdict: Trajectory, end: AttemptEvent, spans: list[Span]) -> None:
    assert verdict.accepted, verdict.reason
    assert end.last_sequence_id == NUM_CALLS + 1  # the reward is the last
    assert sorted(span.sequence_id or 0 for span in spans) == list(range(1, NUM_CALLS + 1))
    assert [step.sequence_id for step in verdict.transitions] == list(range(1, NUM_CALLS + 1))
    assert all(step.trainable for step in verdict.transitions)

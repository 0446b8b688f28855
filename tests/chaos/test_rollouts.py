"""200 rollouts, runners and dispatcher killed -9: every one comes to exactly one honest end (G5, G7)."""

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.builders import Attempt
from tests.pipeline import Pipeline, seeded, wait_until
from tests.rollout_audit import Wanted, attempts_of, audit, check_forgotten
from tests.streams.client.dispatching import HandRunner
from tests.streams.runner.harness import DISPATCHER, RUNNER, Rollouts, rollouts_on

from headrace.cli.stack.processor import ProcessorProcess
from headrace.schemas.records import OUTCOME, AttemptEvent, RolloutCommand, RolloutConfig
from headrace.schemas.records.rollout import RolloutStateName
from headrace.streams.client import Client
from headrace.streams.client.admin import group_lag

pytestmark = [pytest.mark.chaos, pytest.mark.integration]

HERE = Path(__file__).parent
NUM_ROLLOUTS = 200
NUM_WAVES = 4
CONCURRENCY = 8
SELDOM = {"HEADRACE_HOST_COMMIT_INTERVAL_S": "3"}
"""Of the dispatcher's commits: killed, it meets seconds of the log again."""
CONFIG = RolloutConfig(
    timeout_s=60, heartbeat_timeout_s=2, max_attempts=8, retry_on=("unresponsive",), reward_grace_s=0
)
ODD: dict[str, tuple[RolloutStateName, RolloutConfig]] = {
    "hang": ("failed", CONFIG.model_copy(update={"timeout_s": 1.5})),
    "raise": ("failed", CONFIG.model_copy(update={"retry_on": ("unresponsive", "failed")})),
    "nan": ("failed", CONFIG),
}


class Scene:
    """The pipeline with a dispatcher and runners to be killed, and what shall come of each rollout."""

    def __init__(self, pipeline: Pipeline, log: Rollouts, client: Client) -> None:
        self.pipeline = pipeline
        self.log = log
        self.client = client
        self.wanted: dict[str, Wanted] = {}
        self.runners: list[ProcessorProcess] = []
        self.processes: list[ProcessorProcess] = []
        state = {"HEADRACE_HOST_STATE_DIR": str(log.folder / "state")}
        self.dispatcher = self._start("dispatcher", DISPATCHER | SELDOM | state)

    # --- processes -----------------------------------------------------------------------------------

    def start_runner(self, place: int) -> None:
        """A new one in this place; the log of the former stays."""
        arguments = ["rollout_agent:play", "--app-dir", str(HERE), "--concurrency", str(CONCURRENCY)]
        self.runners[place:] = [self._start("runner", RUNNER, *arguments), *self.runners[place + 1 :]]

    def _start(self, name: str, env: Mapping[str, str], *arguments: str) -> ProcessorProcess:
        folder = self.pipeline.folder / f"{name}-{len(self.processes)}"
        process = ProcessorProcess(name, folder, env=self.pipeline.places() | dict(env), arguments=arguments)
        self.processes.append(process)
        return process.start()

    def kill_runner(self, place: int) -> None:
        self.runners[place].kill()
        self.start_runner(place)

    def kill_dispatcher(self, *, with_state: bool = False) -> None:
        self.dispatcher.kill()
        if with_state:
            shutil.rmtree(self.log.folder / "state")
        self.dispatcher.start()

    def cli(self, *arguments: str) -> "subprocess.Popen[str]":
        """`headrace rollouts ARGUMENTS`."""
        return subprocess.Popen(
            [sys.executable, "-m", "headrace.cli", "rollouts", *arguments],
            env={**os.environ, **self.pipeline.places()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    # --- rollouts ------------------------------------------------------------------------------------

    def enqueue(
        self, tasks: Sequence[dict[str, Any]], *states: RolloutStateName, config: RolloutConfig = CONFIG
    ) -> list[str]:
        """Their ids; each is to end in one of the states."""
        ids = [each.rollout_id for each in self.client.enqueue(tasks, config=config)]
        self.wanted.update(dict.fromkeys(ids, Wanted(states, config.max_attempts)))
        return ids

    def num_steps(self) -> int:
        return self.pipeline.num_in("rollout-states")

    def open_attempts(self, runner: ProcessorProcess) -> set[str]:
        """What this runner has in hand, by the log."""
        mine = f"-{runner.pid}-"
        return {
            key for key, tried in attempts_of(self.log).items() if mine in tried.runner_id and not tried.ends
        }

    def dispatchers_lag(self) -> int:
        topics = [self.pipeline.topic(name) for name in ("rollouts", "attempts")]
        return sum(
            group_lag(self.pipeline.kafka, f"{self.pipeline.kafka.topic_prefix}-dispatcher", topics).values()
        )


@pytest.fixture
def scene(pipeline: Pipeline, tmp_path: Path) -> Iterator[Scene]:
    with rollouts_on(pipeline.kafka, tmp_path) as log, Client(pipeline.kafka) as client:
        made = Scene(pipeline, log, client)
        is_failed = True
        try:
            yield made
            is_failed = False
        finally:
            for process in made.processes:
                process.kill()
                if is_failed:
                    print(f"--- {process.root.name}, exit status {process.exit_status}\n{process.tail()}")


def work(rng: random.Random, number: int) -> list[dict[str, Any]]:
    return [{"do": "work", "seconds": rng.uniform(0.1, 0.8)} for _ in range(number)]


def finished(process: "subprocess.Popen[str]", timeout_s: float = 60.0) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=timeout_s)
    return process.returncode, out, err


def test_every_rollout_comes_to_one_end(scene: Scene) -> None:
    """C1, C2: hung, failing, silent, frozen, cancelled, killed; what is late is stored and never trained."""
    with seeded("rollouts") as rng, HandRunner(scene.pipeline.kafka) as hand:
        sink = scene.pipeline.sink().start()
        assembler = scene.pipeline.assembler(HEADRACE_ASSEMBLER_ORPHAN_AFTER_S="8").start()

        # No runner is there yet. Two attempts are ours: they start, and fall silent.
        silent = scene.enqueue(work(rng, 2), "succeeded")
        started = hand.start(hand.take(2))
        queued = scene.enqueue(work(rng, 8), "cancelled")
        code, out, err = finished(scene.cli("cancel", *queued))
        assert (code, out) == (0, "8 rollouts asked to end as cancelled\n"), err
        scene.client.wait_all(queued, timeout_s=60)
        for place in range(3):
            scene.start_runner(place)

        hanging = scene.enqueue([{"do": "hang", "seconds": 0}] * 6, "cancelled")
        odd = [
            scene.enqueue([{"do": do, "seconds": 0.2}], state, config=c)[0] for do, (state, c) in ODD.items()
        ]
        racing = scene.enqueue(work(rng, 10), "succeeded", "cancelled")
        waves = split(work(rng, NUM_ROLLOUTS - len(scene.wanted)), NUM_WAVES)

        def flow(tasks: Sequence[dict[str, Any]]) -> list[str]:
            """Let a wave in, and return at a random point of it."""
            target = scene.num_steps() + int(rng.uniform(0.0, 0.8) * 3 * len(tasks))
            ids = scene.enqueue(tasks, "succeeded")
            wait_until(lambda: scene.num_steps() >= target, what=f"{target} steps")
            return ids

        working = flow(waves[0])
        waits = [scene.cli("wait", *working), scene.cli("wait", hanging[0], "--timeout", "1")]
        scene.kill_runner(rng.randrange(3))
        scene.client.cancel(racing)

        working += flow(waves[1])
        scene.kill_dispatcher()
        check_told(scene, hand, silent, started)
        wait_until(partial(are_running, scene, hanging), what="what hangs to run")
        check_timed_out(waits[1])
        scene.client.cancel(hanging)

        working += flow(waves[2])
        scene.kill_dispatcher(with_state=True)
        scene.kill_runner(rng.randrange(3))

        frozen = rng.randrange(3)
        working += flow(waves[3])
        held = freeze(scene, scene.runners[frozen])
        scene.kill_dispatcher(with_state=rng.random() < 0.5)
        wait_until(lambda: num_ends(scene, held) >= len(held), what="the dispatcher to end what is frozen")
        os.kill(scene.runners[frozen].pid or 0, signal.SIGCONT)
        wait_until(lambda: num_ends(scene, held) >= 2 * len(held), what="late ends of what was frozen")

        assert len(scene.wanted) == NUM_ROLLOUTS
        finals = scene.client.wait_all(scene.wanted, timeout_s=90)
        assert {finals[each].attempt_status for each in odd[:1]} == {"timeout"}
        check_waits(scene, waits, odd, working)
        # Terminal is final, whatever is asked again.
        commands = scene.log.read(RolloutCommand)
        scene.client.submit(rng.sample(commands, 20))
        scene.client.cancel(rng.sample(list(finals), 5))
        assert all(each.running for each in (sink, assembler, scene.dispatcher, *scene.runners))
        stop_runners(scene)
        settle(scene)
        counted = audit(scene.pipeline, scene.log, scene.wanted)
        print(counted)
        assert counted["superseded"] >= len(silent)
        assert counted["late ends"] >= len(held) + 1
        check_late_reward(scene, started[0].attempt_id)
        assert all(each.running for each in (sink, assembler, scene.dispatcher))
        scene.dispatcher.stop()
        assert scene.dispatcher.exit_status == 0
        check_forgotten(scene.log, scene.wanted)


def split(tasks: Sequence[dict[str, Any]], num_parts: int) -> list[Sequence[dict[str, Any]]]:
    return [tasks[number::num_parts] for number in range(num_parts)]


def are_running(scene: Scene, ids: Sequence[str]) -> bool:
    return all(state and state.state == "running" for state in scene.client.status(ids).values())


def freeze(scene: Scene, runner: ProcessorProcess) -> set[str]:
    """Stop the process while it has attempts in hand; return those."""
    assert runner.pid is not None
    while True:
        wait_until(lambda: bool(scene.open_attempts(runner)), what="a runner with attempts", timeout_s=30)
        os.kill(runner.pid, signal.SIGSTOP)
        held = scene.open_attempts(runner)
        if held:
            return held
        os.kill(runner.pid, signal.SIGCONT)


def num_ends(scene: Scene, attempt_ids: Collection[str]) -> int:
    attempts = attempts_of(scene.log)
    return sum(len(attempts[each].ends) for each in attempt_ids)


def check_told(
    scene: Scene, hand: HandRunner, silent: Sequence[str], started: Sequence[AttemptEvent]
) -> None:
    """Silence ends our attempts. One of them is heard of again when that is long over."""
    mine = {event.attempt_id for event in started}
    wait_until(lambda: num_ends(scene, mine) >= len(mine), what="silence to be noticed")
    attempts = attempts_of(scene.log)
    assert {attempts[each].status for each in mine} == {"unresponsive"}
    late = Attempt("late")
    late.rollout_id, late.attempt_id = started[0].rollout_id, started[0].attempt_id
    for record in (late.call(1), late.reward(1.0, 2, name=OUTCOME), late.ended(2)):
        scene.client.publisher.publish(record)
    scene.client.publisher.flush()


def check_timed_out(waiting: "subprocess.Popen[str]") -> None:
    """Before what it waits for is cancelled: however late it starts, it has only its second to wait."""
    code, out, err = finished(waiting)
    assert code == 1, (out, err)
    assert "after 1 s 1 of 1 rollouts are not final" in err


def check_waits(
    scene: Scene, waits: "Sequence[subprocess.Popen[str]]", odd: Sequence[str], working: Sequence[str]
) -> None:
    """`headrace rollouts wait` ends with 0 if all succeeded, else with 1 and what is to be known."""
    code, out, err = finished(waits[0])
    assert (code, "not final" in err) == (0, False), (out, err)
    over = [scene.cli("wait", *odd), scene.cli("wait", *working)]
    code, out, err = finished(over[0])
    assert (code, out.splitlines()[0]) == (1, "3 failed, of 3"), err
    code, out, err = finished(over[1])
    assert (code, out.splitlines()[0]) == (0, f"{len(working)} succeeded, of {len(working)}"), err


def stop_runners(scene: Scene) -> None:
    """A runner may report its own end long after the dispatcher's: only a drained one is silent."""
    for runner in scene.runners:
        runner.stop()
        assert runner.exit_status == 0, runner.tail()


def settle(scene: Scene) -> None:
    """Return when every attempt of the log has its end and its verdict, and all of it is in ClickHouse."""

    def all_ended() -> bool:
        return scene.dispatchers_lag() == 0 and all(tried.ends for tried in attempts_of(scene.log).values())

    wait_until(all_ended, what="an end of every attempt")
    num_attempts = len(attempts_of(scene.log))
    scene.pipeline.settle(num_attempts, num_verdicts=num_attempts)


def check_late_reward(scene: Scene, attempt_id: str) -> None:
    client = scene.pipeline.client()
    rows = client.query(
        "SELECT value, late FROM rewards WHERE attempt_id = {id:String}", parameters={"id": attempt_id}
    ).result_rows
    client.close()
    assert rows == [(1.0, True)]

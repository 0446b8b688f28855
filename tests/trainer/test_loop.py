"""The loop on a real model, with batches and outlet in memory: what it trains on, and what it leaves out."""

import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pytest
import torch
from tests import tiny_model
from tests.trainer.rollouts import a_call, a_trajectory

from headrace.schemas.records import Trajectory
from headrace.trainer.algorithms import make_algorithm
from headrace.trainer.checkpoint import Checkpoints, TrainState
from headrace.trainer.loop import Loop
from headrace.trainer.models import make_policy
from headrace.trainer.policy import Parallel, Policy
from headrace.trainer.progress import Report
from headrace.trainer.ranks import Ranks
from headrace.trainer.samples import SampleRules
from headrace.trainer.settings import TrainSettings
from headrace.trainer.source import BatchSource, TrainingBatch


class KilledError(Exception):
    """Where a test ends the run."""


class Log:
    """A Reader: batches at offsets; kills the run after so many."""

    def __init__(
        self, batches: Sequence[TrainingBatch], stop: threading.Event, kill_after: int | None
    ) -> None:
        self.batches = batches
        self.stop = stop
        self.at = 0
        self.begins_at = 0
        self.left = kill_after

    def seek(self, offsets: Mapping[str, int]) -> None:
        self.at = offsets.get("batches:0", self.begins_at)

    @property
    def offsets(self) -> Mapping[str, int]:
        return {"batches:0": self.at}

    def waiting_for(self) -> str:
        return "nothing"

    def poll(self, timeout_s: float) -> TrainingBatch | None:  # noqa: ARG002
        if self.at == len(self.batches):
            self.stop.set()
            return None
        if self.left == 0:
            raise KilledError
        self.left = None if self.left is None else self.left - 1
        self.at += 1
        return self.batches[self.at - 1]


class Outlet:
    """Versions are counted; what they are of is kept."""

    def __init__(self) -> None:
        self.versions: list[tuple[int, tuple[str, ...]]] = []
        self.reports: list[Report] = []
        self.trained: list[str] = []
        self.kill_after_reports: int | None = None

    def publish_weights(self, policy: Policy, state: TrainState) -> int:  # noqa: ARG002
        self.versions.append((state.step, state.unpublished))
        return (state.policy_version or 0) + 1

    def publish_step(self, report: Report, batch_ids: Sequence[str]) -> None:
        self.reports.append(report)
        self.trained += batch_ids
        if len(self.reports) == self.kill_after_reports:
            raise KilledError


class Silent:
    def step(self, report: Report) -> None: ...

    def waiting(self, what: str) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.make(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def parallel() -> Iterator[Parallel]:
    with Parallel.start() as started:
        yield started


def settings_for(model: Path, output: Path, **tables: Any) -> TrainSettings:
    known: dict[str, Any] = {
        "run": {"name": "run", "output": output},
        "model": {"path": model},
        "optimizer": {"lr": 1e-3},
        "checkpoint": {"every_steps": 2, "keep": 2},
        **tables,
    }
    return TrainSettings(**known)


def a_group(
    name: str,
    rng: random.Random,
    *,
    version: int = 1,
    outcomes: Sequence[float] = (0.0, 1.0),
    resource: str | None = "policy",
) -> list[Trajectory]:
    found = []
    origin = {"resource_name": resource, "resource_version": version}
    for number, outcome in enumerate(outcomes):
        prompt = [rng.randrange(300) for _ in range(rng.randrange(3, 9))]
        first = [rng.randrange(300) for _ in range(rng.randrange(1, 5))]
        second = [*prompt, *first, rng.randrange(300)]
        calls = [
            a_call(prompt, first, response_logprobs=tuple(-5.0 for _ in first), **origin),
            a_call(second, [7], response_logprobs=(-5.5,), **origin),
        ]
        found.append(a_trajectory(*calls, name=f"{name}-{number}", group_id=name, outcome=outcome))
    return found


def batches(number: int, **fields: Any) -> list[TrainingBatch]:
    rng = random.Random(5)
    return [
        TrainingBatch(
            f"batch-{place}",
            [a_group(f"{place}-{group}", rng, **fields) for group in range(2)],
            {"batches:0": place + 1},
            0.0,
        )
        for place in range(number)
    ]


def run(
    settings: TrainSettings,
    parallel: Parallel,
    made: Sequence[TrainingBatch],
    outlet: Outlet,
    *,
    kill_after: int | None = None,
    begins_at: int = 0,
) -> tuple[TrainState, Policy]:
    """`begins_at` is where a run begins that has no offsets."""
    torch.manual_seed(settings.run.seed)
    stop, ranks = threading.Event(), Ranks()
    policy, log = make_policy(settings, parallel), Log(made, stop, kill_after)
    log.begins_at = begins_at
    loop = Loop(
        settings,
        policy,
        make_algorithm(settings.algorithm, SampleRules.from_settings(settings)),
        source=BatchSource(ranks, log, stop),
        checkpoints=Checkpoints(settings.checkpoint_path, ranks, keep=settings.checkpoint.keep),
        outlet=outlet,
        progress=Silent(),
    )
    return loop.run(), policy


def test_each_batch_is_trained_on_once(model: Path, parallel: Parallel, tmp_path: Path) -> None:
    outlet = Outlet()
    state, _ = run(settings_for(model, tmp_path), parallel, batches(5), outlet)
    assert outlet.trained == [f"batch-{place}" for place in range(5)]
    assert (state.step, state.num_batches, state.offsets) == (5, 5, {"batches:0": 5})
    # The first version is of the weights before any step, so that calls are stamped from the first on.
    assert outlet.versions == [(0, ()), *((step, (f"batch-{step - 1}",)) for step in range(1, 6))]
    metrics = outlet.reports[-1].metrics
    assert metrics["outcome"] == 0.5
    assert metrics["grad_norm"] > 0
    assert metrics["logprob_gap_max"] > 0
    assert metrics["num_actions"] > 4


@pytest.mark.parametrize("kills", [[1], [3], [2, 1, 2]], ids=str)
def test_a_killed_run_comes_to_the_same_weights(
    model: Path, parallel: Parallel, tmp_path: Path, kills: list[int]
) -> None:
    """G5: trained batches have no gap and no repeat against the checkpoints."""
    made = batches(6)
    undisturbed, expected = run(settings_for(model, tmp_path / "a"), parallel, made, Outlet())
    settings, outlet = settings_for(model, tmp_path / "b"), Outlet()
    for kill_after in kills:
        with pytest.raises(KilledError):
            run(settings, parallel, made, outlet, kill_after=kill_after)
        found = Checkpoints(settings.checkpoint_path, Ranks(), keep=2).newest()
        done = found[0].num_batches if found else 0
        # What no checkpoint knows of is trained on again, and nothing else.
        outlet.trained = outlet.trained[:done]
    resumed, policy = run(settings, parallel, made, outlet)
    assert outlet.trained == [batch.batch_id for batch in made]
    assert resumed.model_dump(exclude={"policy_version"}) == undisturbed.model_dump(
        exclude={"policy_version"}
    )
    weights, others = policy.hf_state_dict(), expected.hf_state_dict()
    assert weights is not None
    assert others is not None
    assert weights.keys() == others.keys()
    assert all(torch.equal(weights[name], others[name]) for name in weights)


def test_what_is_too_old_is_left_out_and_counted(model: Path, parallel: Parallel, tmp_path: Path) -> None:
    """C15: the version in training less the oldest in the group, from the records."""
    made = [*batches(3, version=1), *batches(3, version=4)[1:2]]
    outlet = Outlet()
    settings = settings_for(model, tmp_path, data={"max_staleness": 1})
    state, _ = run(settings, parallel, made, outlet)
    assert [report.metrics["num_stale_groups"] for report in outlet.reports] == [0, 0, 2, 0]
    assert [report.num_rollouts for report in outlet.reports] == [4, 4, 0, 4]
    # By which a feeder knows that nothing of the third is to come.
    assert [report.num_steps for report in outlet.reports] == [1, 1, 0, 1]
    assert [report.num_batches for report in outlet.reports] == [1, 2, 3, 4]
    assert (state.step, state.num_batches) == (3, 4)


def test_a_batch_with_nothing_to_learn_from_goes_by(model: Path, parallel: Parallel, tmp_path: Path) -> None:
    """C3: calls without ids, and groups without contrast."""
    rng, call = random.Random(1), a_call([1, 2], [], trainable=False, reason="no_token_ids")
    empty = a_trajectory(call, name="empty")
    made = [
        TrainingBatch("empty", [[empty]], {"batches:0": 1}, 0.0),
        TrainingBatch("flat", [a_group("flat", rng, outcomes=(1.0, 1.0))], {"batches:0": 2}, 0.0),
        *batches(3)[2:],
    ]
    outlet = Outlet()
    state, _ = run(settings_for(model, tmp_path), parallel, made, outlet)
    assert outlet.trained == ["empty", "flat", "batch-2"]
    assert outlet.reports[0].metrics["left_out_untrainable"] == 1
    assert state.num_batches == 3
    assert outlet.versions[-1][1][-1] == "batch-2"


@pytest.mark.parametrize(
    ("stop", "num_batches"),
    [
        pytest.param({"max_steps": 2}, 2, id="steps"),
        pytest.param({"max_versions": 3}, 2, id="versions"),
        pytest.param({"reward": 0.5, "reward_window": 12}, 3, id="reward"),
        pytest.param({"reward": 0.6, "reward_window": 12}, 5, id="not reached"),
    ],
)
def test_it_ends_when_it_should(
    model: Path, parallel: Parallel, tmp_path: Path, stop: dict[str, Any], num_batches: int
) -> None:
    settings, made = settings_for(model, tmp_path, stop=stop), batches(5)
    state, _ = run(settings, parallel, made, Outlet())
    assert state.num_batches == num_batches
    if num_batches < len(made):
        # Started again, by whatever watches it, it has nothing left to do.
        again = Outlet()
        assert run(settings, parallel, made, again)[0] == state
        assert (again.trained, again.versions) == ([], [])


def test_the_reward_is_that_of_all_settled_rollouts(model: Path, parallel: Parallel, tmp_path: Path) -> None:
    """Those that all did equally well are in no batch: what is in one never says that all is learnt."""
    made = [batch._replace(num_settled=16, settled_outcome=0.95) for batch in batches(4)]
    outlet = Outlet()
    stop = {"reward": 0.95, "reward_window": 30}
    state, _ = run(settings_for(model, tmp_path, stop=stop), parallel, made, outlet)
    assert state.num_batches == 2
    assert outlet.reports[0].metrics["outcome"] == 0.95
    assert outlet.reports[0].metrics["outcome_trained"] == 0.5


def test_a_step_is_in_the_log_before_a_checkpoint_knows_of_it(
    model: Path, parallel: Parallel, tmp_path: Path
) -> None:
    """Killed in between, it is said again; the other way round nobody would ever hear of it."""
    settings, made, outlet = (
        settings_for(model, tmp_path, checkpoint={"every_steps": 1}),
        batches(3),
        Outlet(),
    )
    outlet.kill_after_reports = 2
    with pytest.raises(KilledError):
        run(settings, parallel, made, outlet)
    again = Outlet()
    run(settings, parallel, made, again)
    assert outlet.trained == ["batch-0", "batch-1"]
    assert again.trained == ["batch-1", "batch-2"]


def test_a_run_that_begins_at_the_end_of_the_log_begins_there_once(
    model: Path, parallel: Parallel, tmp_path: Path
) -> None:
    settings, made = settings_for(model, tmp_path, data={"start": "latest"}), batches(4)
    with pytest.raises(KilledError):
        run(settings, parallel, made, Outlet(), kill_after=1, begins_at=1)
    outlet = Outlet()
    run(settings, parallel, made, outlet, begins_at=4)
    assert outlet.trained == ["batch-1", "batch-2", "batch-3"]


def test_calls_from_before_the_run_s_own_weights_are_too_old(
    model: Path, parallel: Parallel, tmp_path: Path
) -> None:
    """A run that starts over begins with other weights than those of the version before its first."""

    class LaterOutlet(Outlet):
        def publish_weights(self, policy: Policy, state: TrainState) -> int:
            return super().publish_weights(policy, state) + (6 if state.policy_version is None else 0)

    outlet, made = LaterOutlet(), [*batches(1, version=6), *batches(2, version=7)[1:]]
    run(settings_for(model, tmp_path, data={"max_staleness": 9}), parallel, made, outlet)
    assert [report.metrics["num_stale_groups"] for report in outlet.reports] == [2, 0]


def test_a_run_killed_before_its_first_step_s_checkpoint_begins_where_it_did(
    model: Path, parallel: Parallel, tmp_path: Path
) -> None:
    """Its own first version is not that of another run."""

    class Counting(Outlet):
        def publish_weights(self, policy: Policy, state: TrainState) -> int:
            super().publish_weights(policy, state)
            return len(self.versions)

    settings, outlet = settings_for(model, tmp_path), Counting()
    with pytest.raises(KilledError):
        run(settings, parallel, batches(3), outlet, kill_after=1)
    state, _ = run(settings, parallel, batches(3), outlet)
    assert [step for step, _ in outlet.versions] == [0, 1, 1, 2, 3]
    assert (state.first_version, state.step) == (1, 3)
    assert all(report.num_stale == 0 for report in outlet.reports)


def test_the_gap_to_the_engine_is_of_the_same_weights(
    model: Path, parallel: Parallel, tmp_path: Path
) -> None:
    """A version that two batches are trained on between: the second's weights are no version's."""
    outlet = Outlet()
    run(settings_for(model, tmp_path, publish={"every_steps": 2}), parallel, batches(3), outlet)
    has_gap = ["engine_gap_max" in report.metrics for report in outlet.reports]
    assert has_gap == [True, False, False]


def test_several_steps_a_batch(model: Path, parallel: Parallel, tmp_path: Path) -> None:
    outlet = Outlet()
    algorithm = {"name": "ppo", "num_epochs": 2, "num_mini_batches": 2, "old_logprobs": "policy"}
    settings = settings_for(model, tmp_path, algorithm=algorithm, publish={"every_steps": 8})
    state, _ = run(settings, parallel, batches(3), outlet)
    assert state.step == 12
    # Passed within a batch; and the rest at the end, which the checkpoint knows of too.
    assert [step for step, _ in outlet.versions] == [0, 8, 12]
    found = Checkpoints(settings.checkpoint_path, Ranks(), keep=2).newest()
    assert found is not None
    assert found[0] == state
    assert (state.policy_version, state.unpublished) == (3, ())


def test_supervised_training_through_the_same_loop(model: Path, parallel: Parallel, tmp_path: Path) -> None:
    """On the responses of rollouts that did well; the others are left alone."""
    outlet, made = Outlet(), batches(4)
    settings = settings_for(model, tmp_path, algorithm={"name": "sft", "min_outcome": 0.5})
    state, _ = run(settings, parallel, [made[0]] * 4, outlet)
    assert (state.step, state.num_batches) == (4, 4)
    losses = [report.metrics["loss"] for report in outlet.reports]
    assert losses == sorted(losses, reverse=True)
    assert len(set(losses)) == 4

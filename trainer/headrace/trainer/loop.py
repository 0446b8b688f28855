"""The loop: a batch in, optimizer steps, what they did out; checkpoints and versions on the way.

Every process runs it, on the same batches, and comes to the same decisions; only the main one reads topics
and publishes. A batch is trained on as a whole before the state moves past it, so that a checkpoint stands
between batches, and a resume trains each batch exactly once as the weights know it (G5).
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean as mean
from typing import Protocol

import structlog

from headrace.trainer.algorithms import Algorithm
from headrace.trainer.checkpoint import Checkpoints, TrainState
from headrace.trainer.micro_batches import (
    micro_batches,
    mini_batches,
    with_old_logprobs,
    with_reference_logprobs,
)
from headrace.trainer.policy import Policy, StepOutput
from headrace.trainer.preparation import Prepared, outcome_metrics, prepare, settled_outcomes
from headrace.trainer.progress import Progress, Report
from headrace.trainer.sample import MicroBatch, WeightedSample
from headrace.trainer.samples import SampleRules
from headrace.trainer.settings import TrainSettings
from headrace.trainer.source import BatchSource, TrainingBatch

log = structlog.get_logger(__name__)

_GAP = "logprob_gap"
_MAX_ENGINE_GAP = 1.0
"""In bfloat16 rounding alone makes some tenths; another temperature makes more than this."""


class Outlet(Protocol):
    """What leaves the trainer; on other ranks than the main one it does nothing."""

    def publish_weights(self, policy: Policy, state: TrainState) -> int:
        """The version that the policy's weights have now, the same on every rank. Collective."""

    def publish_step(self, report: Report, batch_ids: Sequence[str]) -> None:
        """Return when it is in the log. Collective."""


@dataclass
class _Clock:
    """Where a step's time goes."""

    spent_s: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.spent_s[what] = self.spent_s.get(what, 0.0) + time.perf_counter() - began


class Loop:
    def __init__(
        self,
        settings: TrainSettings,
        policy: Policy,
        algorithm: Algorithm,
        *,
        source: BatchSource,
        checkpoints: Checkpoints,
        outlet: Outlet,
        progress: Progress,
        reference: Policy | None = None,
    ) -> None:
        """`reference` is the fixed policy of the KL term."""
        self._settings = settings
        self._rules = SampleRules.from_settings(
            settings, max_positions=policy.max_positions, vocabulary=policy.vocabulary
        )
        self._policy = policy
        self._algorithm = algorithm
        self._source = source
        self._checkpoints = checkpoints
        self._outlet = outlet
        self._progress = progress
        self._reference = reference
        self._unreported = _Clock()
        """What was done after the last report."""
        self.state = TrainState(run_id=settings.run.name)

    def run(self) -> TrainState:
        """Until told to stop, or until what the settings ask for is reached. Collective."""
        found = self._checkpoints.load(self._policy, self.state.run_id)
        self.state = found or self.state
        if not self._is_over():
            self._begin()
            self._train()
        if self.state.unpublished:
            self._publish_weights()
        self._checkpoint()
        return self.state

    def _begin(self) -> None:
        """Where the state is. Of a new run that is a checkpoint: started over, it would begin elsewhere."""
        offsets = self._source.start(self.state)
        if self.state.policy_version is None:
            # Calls are to be stamped from the first on.
            self._publish_weights()
            self.state = self._updated(
                first_version=self.state.policy_version,
                offsets=dict(offsets) if self._settings.data.start == "latest" else {},
            )
            self._checkpoint()

    def _train(self) -> None:
        for batch in self._source:
            clock, self._unreported = self._unreported, _Clock()
            clock.spent_s["idle"] = batch.waited_s
            self._train_on(batch, clock)
            if self._is_over():
                break

    # --- one batch -----------------------------------------------------------------------------------

    def _train_on(self, batch: TrainingBatch, clock: "_Clock") -> None:
        with clock.on("preparation"):
            prepared = prepare(batch, self._rules, self.state, self._settings.data.max_staleness)
            weighted = self._algorithm.weigh(prepared.groups)
        steps: list[StepOutput] = []
        before = self.state.step
        gap = self._engine_gap(weighted, clock)
        if any(each.sample.num_actions for each in weighted):
            steps = self._steps(weighted, clock)
        self._advance(batch, prepared, weighted, len(steps))
        # In this order: what a checkpoint knows of is in the log, and what no checkpoint knows of is found
        # again, or said again, when its step is repeated.
        with clock.on("sync"):
            if self._has_passed(self._settings.publish.every_steps, before):
                self._publish_weights()
        self._tell(batch, prepared, weighted, steps, clock=clock, gap=gap)
        with self._unreported.on("sync"):
            if self._has_passed(self._settings.checkpoint.every_steps, before):
                self._checkpoint()

    def _steps(self, weighted: Sequence[WeightedSample], clock: "_Clock") -> list[StepOutput]:
        algorithm = self._algorithm
        parts = mini_batches(weighted, algorithm.num_mini_batches, seed=self.state.num_batches)
        made = [self._micro_batches(part, clock) for part in parts]
        with clock.on("training"):
            return [
                self._policy.train(part, algorithm.loss) for _ in range(algorithm.num_epochs) for part in made
            ]

    def _micro_batches(self, samples: Sequence[WeightedSample], clock: "_Clock") -> list[MicroBatch]:
        """This rank's, with every model's logprobs that the loss wants: from before the first step."""
        policy, algorithm = self._policy, self._algorithm
        with clock.on("preparation"):
            made = micro_batches(
                samples,
                max_tokens=self._settings.data.micro_batch_tokens,
                dp_rank=policy.dp_rank,
                dp_size=policy.dp_size,
            )
        with clock.on("logprobs"):
            if algorithm.needs_old_logprobs:
                made = with_old_logprobs(made, policy.logprobs(made))
            if algorithm.needs_reference_logprobs:
                assert self._reference is not None  # noqa: S101  made where the algorithm needs it
                made = with_reference_logprobs(made, self._reference.logprobs(made))
        return made

    def _engine_gap(self, weighted: Sequence[WeightedSample], clock: "_Clock") -> float | None:
        """The largest |trainer's - engine's| logprob where both have the same weights; None without such.

        On a micro-batch of the calls that came from the version that is in training now: it tells how far the
        two programs differ, and nothing of how far the policy has moved.
        """
        version = None if self.state.unpublished else self.state.policy_version
        fresh = [each for each in weighted if version is not None and each.sample.min_version == version]
        with clock.on("logprobs"):
            made = micro_batches(
                fresh,
                max_tokens=self._settings.data.micro_batch_tokens,
                dp_rank=self._policy.dp_rank,
                dp_size=self._policy.dp_size,
            )[:1]
            gaps = [
                (logprobs_BS.cpu() - batch.behaviour_logprobs_BS).abs()[batch.weights_BS != 0]
                for batch, logprobs_BS in zip(made, self._policy.logprobs(made), strict=True)
            ]
        found = next((float(gap.max()) for gap in gaps if gap.numel()), None)
        if found is not None and found > _MAX_ENGINE_GAP:
            log.warning(
                "engine and trainer differ on the same weights: do agents sample at [model] temperature?",
                engine_gap_max=found,
                policy_version=version,
            )
        return found

    def _advance(
        self, batch: TrainingBatch, prepared: Prepared, weighted: Sequence[WeightedSample], num_steps: int
    ) -> None:
        state, window = self.state, self._settings.stop.reward_window
        self.state = self._updated(
            step=state.step + num_steps,
            num_batches=state.num_batches + 1,
            offsets=dict(batch.offsets),
            unpublished=(*state.unpublished, batch.batch_id) if num_steps else state.unpublished,
            num_samples=state.num_samples + len(weighted),
            num_tokens=state.num_tokens + sum(len(each.sample) for each in weighted),
            outcomes=(*state.outcomes, *settled_outcomes(batch, prepared, window))[-window:],
        )

    def _updated(self, **changes: object) -> TrainState:
        return self.state.model_copy(update=changes)

    # --- what goes out -------------------------------------------------------------------------------

    def _publish_weights(self) -> None:
        version = self._outlet.publish_weights(self._policy, self.state)
        num_versions = self.state.num_versions + 1
        self.state = self._updated(policy_version=version, unpublished=(), num_versions=num_versions)

    def _checkpoint(self) -> None:
        newest = self._checkpoints.newest()
        if newest is None or newest[0].num_batches < self.state.num_batches:
            self._checkpoints.save(self._policy, self.state)
        elif newest[0] != self.state:
            self._checkpoints.amend(self.state)

    def _tell(
        self,
        batch: TrainingBatch,
        prepared: Prepared,
        weighted: Sequence[WeightedSample],
        steps: Sequence[StepOutput],
        *,
        clock: "_Clock",
        gap: float | None,
    ) -> None:
        metrics = mean_metrics(steps) | outcome_metrics(batch, prepared)
        metrics |= {
            "num_groups": float(len(prepared.groups)),
            "num_stale_groups": float(prepared.num_stale),
            "num_actions": float(sum(each.sample.num_actions for each in weighted)),
        }
        metrics |= {f"left_out_{reason}": float(number) for reason, number in prepared.left_out.items()}
        if gap is not None:
            metrics["engine_gap_max"] = gap
        report = Report(
            step=self.state.step,
            num_batches=self.state.num_batches,
            num_steps=len(steps),
            policy_version=self.state.policy_version,
            num_rollouts=prepared.num_rollouts,
            num_tokens=sum(len(each.sample) for each in weighted),
            num_stale=prepared.num_stale,
            metrics=metrics,
            durations_s=dict(clock.spent_s),
        )
        self._outlet.publish_step(report, (batch.batch_id,))
        self._progress.step(report)

    def _has_passed(self, every_steps: int, before: int) -> bool:
        return self.state.step // every_steps > before // every_steps

    def _is_over(self) -> bool:
        stop, state = self._settings.stop, self.state
        is_full = len(state.outcomes) == stop.reward_window
        reached = stop.reward is not None and is_full and mean(state.outcomes) >= stop.reward
        return (
            reached
            or (stop.max_steps is not None and state.step >= stop.max_steps)
            or (stop.max_versions is not None and state.num_versions >= stop.max_versions)
        )


def mean_metrics(steps: Sequence[StepOutput]) -> dict[str, float]:
    """Sums become means over actions; of several steps on one batch the mean, and of maxima the largest.

    The gap to the engine is the first step's: later ones have moved away from it on purpose.
    """
    found: dict[str, list[float]] = {}
    for step in steps:
        num = max(step.sums.get("num_actions", 0.0), 1.0)
        for name, value in step.sums.items():
            if name != "num_actions" and (step is steps[0] or not name.startswith(_GAP)):
                found.setdefault(name, []).append(value / num)
        for name in ("loss", "grad_norm", "lr"):
            found.setdefault(name, []).append(getattr(step, name))
        found.setdefault("skipped", []).append(float(step.was_skipped))
    means = {name: mean(values) for name, values in found.items()}
    for step in steps:
        for name, value in step.maxima.items():
            if step is not steps[0] and name.startswith(_GAP):
                continue
            means[name] = max(value, means.get(name, value))
    return means

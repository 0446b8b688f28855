"""Preparation: from a batch to the samples that are trained on, without what is too old. Pure."""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean as mean
from typing import NamedTuple

from headrace.schemas.records import Trajectory
from headrace.trainer.checkpoint import TrainState
from headrace.trainer.sample import Sample
from headrace.trainer.samples import SampleRules, samples_of
from headrace.trainer.source import TrainingBatch


class Prepared(NamedTuple):
    """A batch after what is too old is left out."""

    groups: list[list[tuple[Trajectory, list[Sample]]]]
    num_stale: int
    """Groups."""
    left_out: Counter[str]
    """Attempts, calls and sequences that are not trained on, by reason."""

    @property
    def num_rollouts(self) -> int:
        return sum(len(group) for group in self.groups)

    @property
    def outcomes(self) -> list[float]:
        """Of the rollouts in it."""
        return [each.outcome for group in self.groups for each, _ in group if each.outcome is not None]


def prepare(batch: TrainingBatch, rules: SampleRules, state: TrainState, max_staleness: int) -> Prepared:
    """Staleness is the version in training less the oldest in the group, from the records (C15).

    What is older than the weights that the run began with came from others, however few versions lie between.
    """
    made: list[list[tuple[Trajectory, list[Sample]]]] = []
    num_stale, left_out = 0, Counter[str]()
    for group in batch.groups:
        rollouts = [(each, samples_of(each, rules, left_out)) for each in group]
        if _is_stale([sample for _, samples in rollouts for sample in samples], state, max_staleness):
            num_stale += 1
        else:
            made.append(rollouts)
    return Prepared(made, num_stale, left_out)


def outcome_metrics(batch: TrainingBatch, prepared: Prepared) -> dict[str, float]:
    """`outcome` is of all rollouts settled since the batch before: groups that teach nothing are in no batch,
    and yet say how good the policy is. `outcome_trained` is of those in it.
    """
    found = {}
    if prepared.outcomes:
        found["outcome"] = found["outcome_trained"] = mean(prepared.outcomes)
    if batch.num_settled:
        found["outcome"] = batch.settled_outcome
    return found


def settled_outcomes(batch: TrainingBatch, prepared: Prepared, at_most: int) -> list[float]:
    """As many as were settled, each the mean; those of the batch where nobody says."""
    return [batch.settled_outcome] * min(batch.num_settled, at_most) or prepared.outcomes


def _is_stale(samples: Sequence[Sample], state: TrainState, max_staleness: int) -> bool:
    versions = [sample.min_version for sample in samples if sample.min_version is not None]
    if state.policy_version is None or not versions:
        return False
    return min(versions) < max(state.policy_version - max_staleness, state.first_version or 0)

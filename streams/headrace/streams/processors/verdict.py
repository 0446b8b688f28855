"""Verdict: from an attempt's progress and the records that count to its trajectory. Pure (G3, G4, G6)."""

from collections.abc import Mapping, Sequence

from headrace.schemas.errors import BadRecordError
from headrace.schemas.records import (
    AttemptOrigin,
    GivenReward,
    Reward,
    Span,
    Trajectory,
    Transition,
)
from headrace.streams.processors.credit import GivenCredit, credit_rule
from headrace.streams.processors.lifecycle import ends_rollout
from headrace.streams.processors.progress import Progress

NEVER_STARTED = "never_started"
END_UNKNOWN = "last_sequence_id_unknown"
MISSING = "missing_sequence_ids"
CONFLICT = "sequence_id_conflict"
NO_OUTCOME = "no_outcome_reward"
NO_CALLS = "no_calls"
NO_TRAINABLE_CALLS = "no_trainable_calls"
TOO_LARGE = "too_large"
SUPERSEDED = "superseded"
UNKNOWN_CREDIT_RULE = "unknown_credit_rule"


def decide(
    progress: Progress,
    spans: Mapping[int, Span],
    rewards: Mapping[int, Reward],
    *,
    superseded: bool = False,
) -> Trajectory:
    """The trajectory of an attempt that is ready; records are given by their offset.

    `superseded`: another was before it in the log as this attempt of the rollout (G5: one of them trains).
    """
    assert progress.ended is not None  # noqa: S101  only a ready attempt is decided
    ended = progress.ended[1]
    started = progress.started[1] if progress.started and progress.has_started else None
    origin = progress.origin or AttemptOrigin(group_id=progress.rollout_id)
    counted_spans = [spans[offset] for _, offset in sorted(progress.counted_spans().items())]
    numbered = [rewards[offset] for _, offset in sorted(progress.counted_rewards().items())]
    given = numbered + [rewards[offset] for offset in progress.counted_external()]
    outcome_at = progress.outcome_offset()
    outcome = rewards[outcome_at] if outcome_at is not None else None
    missing = progress.missing()
    transitions, credit_problem = _transitions(origin, counted_spans, given, outcome)
    reason = _reason(progress, origin, transitions, outcome, missing) or credit_problem
    if superseded:
        reason = SUPERSEDED
    attempt = started.attempt if started else ended.attempt
    return Trajectory(
        rollout_id=progress.rollout_id,
        attempt_id=progress.attempt_id,
        attempt=attempt,
        is_final=not superseded and ends_rollout(ended, attempt, origin),
        group_id=origin.group_id,
        group_size=origin.group_size,
        task_id=origin.task_id,
        mode=origin.mode,
        status=ended.status,
        accepted=reason is None,
        reason=reason,
        outcome=outcome.value if outcome else None,
        credit_rule=origin.credit_rule,
        last_sequence_id=progress.last_sequence_id,
        num_events=progress.num_events(),
        missing_sequence_ids=tuple(missing),
        reward_ids=tuple(reward.reward_id for reward in given),
        transitions=tuple(transitions),
        started_at=started.time if started else None,
        ended_at=ended.time,
    )


def without_transitions(trajectory: Trajectory) -> Trajectory:
    """The verdict on an attempt whose transitions don't fit into one record."""
    return trajectory.model_copy(update={"transitions": (), "accepted": False, "reason": TOO_LARGE})


def _reason(
    progress: Progress,
    origin: AttemptOrigin,
    transitions: Sequence[Transition],
    outcome: Reward | None,
    missing: Sequence[int],
) -> str | None:
    """Why the attempt may not train, the first reason that applies; None if it may."""
    assert progress.ended is not None  # noqa: S101
    status = progress.ended[1].status
    conflict = progress.counted_spans().keys() & progress.counted_rewards().keys()
    applies = (
        (status not in origin.accept, f"attempt_{status}"),
        (not progress.has_started, NEVER_STARTED),
        (progress.last_sequence_id is None, END_UNKNOWN),
        (bool(missing), MISSING),
        (bool(conflict), CONFLICT),
        (outcome is None and progress.expects_outcome, NO_OUTCOME),
        (not transitions, NO_CALLS),
        (not any(transition.trainable for transition in transitions), NO_TRAINABLE_CALLS),
    )
    return next((reason for is_so, reason in applies if is_so), None)


def _transitions(
    origin: AttemptOrigin, spans: Sequence[Span], rewards: Sequence[Reward], outcome: Reward | None
) -> tuple[list[Transition], str | None]:
    """The calls as transitions in sequence order, and what is wrong with the credit rule if anything is."""
    calls = [span for span in spans if span.generation is not None and _is_selected(span, origin.agents)]
    steps = [span.sequence_id or 0 for span in calls]
    others = [reward for reward in rewards if outcome is None or reward.reward_id != outcome.reward_id]
    given = [GivenCredit(reward.value, reward.about_sequence_id, reward.sequence_id) for reward in others]
    problem = None
    try:
        credited = credit_rule(origin.credit_rule)(steps, given, outcome.value if outcome else None)
    except BadRecordError:
        credited, problem = [None] * len(steps), UNKNOWN_CREDIT_RULE
    transitions = []
    context: tuple[int, ...] = ()
    for step, (call, reward) in enumerate(zip(calls, credited, strict=True)):
        generation = call.generation
        assert generation is not None  # noqa: S101  selected for having one
        prompt = generation.prompt_token_ids
        shared = common_prefix_len(context, prompt)
        why_not = generation.why_untrainable()
        transitions.append(
            Transition(
                step=step,
                sequence_id=steps[step],
                span_id=call.span_id,
                agent=generation.agent,
                model=generation.model,
                prefix_len=shared,
                prompt_suffix_token_ids=prompt[shared:],
                response_token_ids=generation.response_token_ids,
                response_logprobs=generation.response_logprobs,
                reward=reward,
                rewards=tuple(
                    GivenReward(reward_id=given.reward_id, name=given.name, value=given.value)
                    for given in rewards
                    if given.about_sequence_id == steps[step]
                ),
                is_last=step == len(calls) - 1,
                finish_reason=generation.finish_reason,
                resource_name=generation.resource_name,
                resource_version=generation.resource_version,
                trainable=why_not is None,
                reason=why_not,
            )
        )
        context = prompt + generation.response_token_ids
    return transitions, problem


def _is_selected(span: Span, agents: Sequence[str]) -> bool:
    return not agents or (span.generation is not None and span.generation.agent in agents)


def common_prefix_len(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """How many leading ids two prompts share, id for id (C7)."""
    if b[: len(a)] == a:
        return len(a)
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low

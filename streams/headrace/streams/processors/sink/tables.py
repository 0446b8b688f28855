"""Which tables each topic's records go to."""

from headrace.streams.processors.sink.statement import Table

_CONFIG = {"config": "config_"}

# Prompts in full: each is the leading ids of the one before with its response, and then its own.
_PROMPTS = (
    "arrayFold((prompts, t) -> arrayPushBack(prompts, arrayConcat(arraySlice("
    "arrayConcat(prompts[-1], t.3), 1, t.1), t.2)), "
    "arrayZip(`value.transitions`.prefix_len, `value.transitions`.prompt_suffix_token_ids, "
    "arraySlice(arrayPushFront(`value.transitions`.response_token_ids, CAST([], 'Array(Int32)')), 1, "
    "length(`value.transitions`))), "
    "CAST([], 'Array(Array(Int32))'))"
)
_TRANSITION_FIELDS = (
    "step",
    "sequence_id",
    "span_id",
    "agent",
    "model",
    "prefix_len",
    "response_token_ids",
    "response_logprobs",
    "reward",
    "is_last",
    "finish_reason",
    "resource_name",
    "resource_version",
    "trainable",
    "reason",
)
_TRAJECTORY_ONLY = frozenset(
    {
        "transitions",
        "kind",
        "attempt",
        "is_final",
        "group_size",
        "status",
        "reason",
        "outcome",
        "last_sequence_id",
        "num_events",
        "missing_sequence_ids",
        "reward_ids",
        "started_at",
        "ended_at",
    }
)

TABLES: dict[str, tuple[Table, ...]] = {
    "rollouts": (Table("rollouts_log", "RolloutCommand", flatten=_CONFIG),),
    "rollout-states": (Table("rollout_states_log", "RolloutState"),),
    "tasks": (Table("tasks_log", "AttemptTask", flatten=_CONFIG),),
    "attempts": (Table("attempts_log", "AttemptEvent", flatten={"origin": ""}),),
    "spans": (
        Table(
            "spans_log",
            "Span",
            flatten={"generation": ""},
            presence=("value.generation.Generation.choice_index",),
            replace={
                "sequence_id": "ifNull(`value.sequence_id.long`, 0)",
                "has_generation": "isNotNull(`value.generation.Generation.choice_index`)",
                "choice_index": "ifNull(`value.generation.Generation.choice_index`, 0)",
            },
        ),
    ),
    "rewards": (Table("rewards_log", "Reward"),),
    "trajectories": (
        Table(
            "trajectories_log",
            "Trajectory",
            omit=frozenset({"transitions"}),
            replace={
                "num_transitions": "length(`value.transitions`)",
                "num_trainable": "arrayCount(x -> x, `value.transitions`.trainable)",
            },
        ),
        Table(
            "transitions_log",
            "Trajectory",
            omit=_TRAJECTORY_ONLY,
            replace={
                "attempt_reason": "`value.reason.string`",
                **{name: f"t.{name}" for name in _TRANSITION_FIELDS},
                **{f"rewards.{name}": f"t.rewards.{name}" for name in ("reward_id", "name", "value")},
                "prompt_token_ids": "prompt",
            },
            source=lambda rows: f"SELECT *, {_PROMPTS} AS prompts FROM {rows}",  # noqa: S608  our own words
            joined="ARRAY JOIN `value.transitions` AS t, prompts AS prompt "
            "WHERE NOT throwIf(length(prompt) != t.prefix_len + length(t.prompt_suffix_token_ids), "
            "'prefix_len is longer than the prompt before')",
        ),
    ),
    "batches": (
        Table(
            "batches_log",
            "BatchShard",
            omit=frozenset({"trajectories"}),
            replace={
                "attempt_ids": "`value.trajectories`.attempt_id",
                "group_ids": "arrayDistinct(`value.trajectories`.group_id)",
                "num_transitions": "arraySum(arrayMap(t -> length(t), `value.trajectories`.transitions))",
            },
        ),
    ),
    "groups": (Table("groups_log", "GroupVerdict"),),
    "resources": (Table("resources_log", "ResourceVersion"),),
    "train-steps": (Table("train_steps_log", "TrainStep"),),
    "dead-letters": (Table("dead_letters_log", "DeadLetter"),),
}
"""By topic, in the order in which they are written."""

"""TrainStep: what one optimizer step did."""

from typing import ClassVar

from headrace.schemas.records.base import Count, Identifier, Record, Timestamp


class TrainStep(Record):
    """Metrics may be NaN or infinite: a diverged run must be able to say so."""

    key_field: ClassVar[str] = "run_id"

    run_id: Identifier
    step: Count
    algorithm: Identifier
    policy_version: Count
    batch_ids: tuple[str, ...]
    num_trajectories: Count = 0
    num_tokens: Count = 0
    metrics: dict[str, float] = {}
    durations_s: dict[str, float] = {}
    time: Timestamp

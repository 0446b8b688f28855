"""TrainStep: what a trainer did with a batch: its optimizer steps, or none."""

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
    num_batches: Count = 0
    """Of the run, that are behind the trainer, these included: what tells reports of one `step` apart."""
    num_steps: Count | None = None
    """Optimizer steps on these batches, 0 where nothing in them could be trained on; None: not said."""
    num_trajectories: Count = 0
    num_tokens: Count = 0
    metrics: dict[str, float] = {}
    durations_s: dict[str, float] = {}
    time: Timestamp

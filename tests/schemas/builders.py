"""Small valid records for tests to vary."""

from datetime import UTC, datetime
from typing import Any

from headrace.schemas.ids import derived_uuid7
from headrace.schemas.records import Reward, Span

ROLLOUT_ID = derived_uuid7(1_750_000_000_000, "rollout")
ATTEMPT_ID = derived_uuid7(1_750_000_000_001, "attempt")
REWARD_ID = derived_uuid7(1_750_000_000_002, "reward")
TIME = datetime(2026, 7, 1, 12, 0, 0, 123_456, tzinfo=UTC)


def make_reward(**fields: Any) -> Reward:
    """An outcome reward of 1."""
    ids = {"rollout_id": ROLLOUT_ID, "attempt_id": ATTEMPT_ID, "reward_id": REWARD_ID}
    return Reward(**{**ids, "value": 1.0, "time": TIME, **fields})


def make_span(**fields: Any) -> Span:
    """The first span of an attempt."""
    ids = {"rollout_id": ROLLOUT_ID, "attempt_id": ATTEMPT_ID, "span_id": "s1", "sequence_id": 1}
    return Span(**{**ids, "start_time": TIME, "end_time": TIME, **fields})

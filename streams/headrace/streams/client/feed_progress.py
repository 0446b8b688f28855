"""How far a feeder is, and what it waits for."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from headrace.streams.client.feed_validation import ValidationReport


class FeedProgress(NamedTuple):
    """How far a run is."""

    num_groups: int
    num_fed: int
    epoch: int
    num_in_flight: int
    num_ahead: int
    """Neither excluded nor known as done with; where staleness bounds nothing, as num_in_flight."""
    num_val_left: int
    version: int | None
    """The newest of the weights."""
    fates: Mapping[str, int]
    """Groups with a verdict: batched, or the reason."""
    recent_outcome: float | None
    reports: Sequence[ValidationReport]
    """Of this process: what an earlier one reported is not told again."""
    is_over: bool


class FeedObserver(Protocol):
    """Told from the feeder's loop: be quick."""

    def progressed(self, progress: FeedProgress) -> None: ...

    def validated(self, report: ValidationReport) -> None: ...


def waiting_for(progress: FeedProgress, room: int) -> str:
    """What must come before the next group can be fed; for people (C14)."""
    if progress.num_fed >= progress.num_groups:
        return f"the verdicts of {progress.num_in_flight} groups and {progress.num_val_left} of validation"
    if room > 0:
        return "nothing"
    num_batched = progress.num_ahead - progress.num_in_flight
    words = f"the verdicts of {progress.num_in_flight} groups"
    return f"{words}, or a version trained on {num_batched} batched ones" if num_batched else words

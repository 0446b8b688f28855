"""Settled: how well the groups of a partition did since its last batch, those that train on nothing included.

Where groups that all did alike are left out, what is in batches says little of how good a policy is.
"""

import math
from typing import NamedTuple, Self

from headrace.streams.processors.batcher.group import Group


class Settled(NamedTuple):
    """Outcomes of accepted rollouts, of groups for training. `offset` is of the record that it is as of."""

    offset: int = -1
    outcome_sum: float = 0.0
    num_outcomes: int = 0

    def plus(self, group: Group, offset: int) -> Self:
        """With one group more; the same if there is nothing to add. Sums follow the order of the log (G4)."""
        outcomes = group.outcomes if group.mode == "train" else []
        try:
            total = math.fsum([self.outcome_sum, *outcomes])
        except OverflowError:
            total = math.inf
        if not outcomes or not math.isfinite(total):
            return self
        return self._replace(offset=offset, outcome_sum=total, num_outcomes=self.num_outcomes + len(outcomes))

"""What the training demo shows while it runs, and looks at to end: from SQL, as anybody would ask."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_FIGURES = """
SELECT
    (SELECT count() FROM trajectories WHERE mode = 'train'),
    (SELECT avg(outcome = 1) FROM (SELECT outcome FROM trajectories
        WHERE mode = 'train' AND outcome IS NOT NULL ORDER BY ended_at DESC LIMIT {window:UInt32})),
    (SELECT count() FROM batches),
    (SELECT maxOrNull(version) FROM resources WHERE name = 'policy'),
    (SELECT count() FROM transitions),
    (SELECT maxOrNull(metrics['engine_gap_max']) FROM train_steps)
"""
_CURVE = """
SELECT avg(outcome), avg(outcome = 1), count() FROM (
    SELECT outcome, intDiv(row_number() OVER (ORDER BY ended_at) - 1, {each:UInt32}) AS part
    FROM trajectories WHERE mode = 'train' AND outcome IS NOT NULL
) GROUP BY part ORDER BY part
"""


class Figures(NamedTuple):
    num_rollouts: int
    accuracy: float | None
    """Of the last rollouts: in how many both boxes were right."""
    num_batches: int
    policy_version: int | None
    num_transitions: int
    largest_gap: float | None
    """Between the engine's logprobs and the trainer's, over all steps."""


class Point(NamedTuple):
    """Of some rollouts, in the order in which they ended."""

    reward: float
    accuracy: float
    num_rollouts: int


def read_figures(client: "Client", window: int) -> Figures:
    (row,) = client.query(_FIGURES, parameters={"window": window}).result_rows
    accuracy = row[1] if row[0] else None
    return Figures(row[0], accuracy, row[2], row[3], row[4], row[5])


def read_curve(client: "Client", each: int) -> list[Point]:
    """One point for so many rollouts."""
    rows = client.query(_CURVE, parameters={"each": each}).result_rows
    return [Point(*row) for row in rows]

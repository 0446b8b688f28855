"""The rollouts view on real ClickHouse, over a table of situations: what was asked, ran and was said."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson
import pytest
from clickhouse_connect.driver.client import Client
from tests.builders import an_id

from headrace.cli.assets import asset
from headrace.cli.stack.clickhouse import ClickHouseServer
from headrace.streams.clickhouse import connect, migrate
from headrace.streams.settings import ClickHouseSettings

pytestmark = pytest.mark.integration

Row = dict[str, Any]
TIMES = [f"2026-09-21 14:13:{second:02}.000000" for second in range(60)]


class Situation(NamedTuple):
    """Rows of the tables, in the order of their logs, and what the view makes of them. Ids are filled in."""

    commands: list[Row]
    states: list[Row]
    attempts: list[Row]
    verdicts: list[Row]
    expected: Row | None


def command(kind: str = "enqueue", at: int = 0, **fields: Any) -> Row:
    defaults = {"group_id": "group", "group_size": 2, "task_id": "task", "mode": "val"}
    if kind == "cancel":
        defaults |= {"group_id": "of the cancel", "task_id": "", "mode": "train"}
    return {"kind": kind, "time": TIMES[at]} | defaults | fields


def state(name: str, revision: int, at: int = 0, **fields: Any) -> Row:
    is_final = name in {"succeeded", "failed", "cancelled"}
    said = {"group_id": "group", "group_size": 2, "task_id": "task", "mode": "val"}
    return {"state": name, "revision": revision, "is_final": is_final, "time": TIMES[at]} | said | fields


def started(attempt: int = 1, at: int = 1, **fields: Any) -> Row:
    defaults = {"kind": "started", "status": "running", "attempt": attempt, "time": TIMES[at]}
    return defaults | {"group_id": "group", "task_id": "task", "mode": "val"} | fields


def ended(status: str = "succeeded", attempt: int = 1, at: int = 2, **fields: Any) -> Row:
    return {"kind": "ended", "status": status, "attempt": attempt, "time": TIMES[at]} | fields


def verdict(attempt: int = 1, *, accepted: bool = True, **fields: Any) -> Row:
    told = {"kind": "trajectory", "attempt": attempt, "accepted": accepted, "status": "succeeded"}
    return told | fields


def row(name: str, **fields: Any) -> Row:
    told = {"group_id": "group", "task_id": "task", "mode": "val", "num_attempts": 0, "outcome": None}
    times = {"enqueued_at": None, "started_at": None, "ended_at": None}
    return {"state": name, "is_final": False, "reason": None, "error": None} | told | times | fields


QUEUED = [state("queuing", 1)]
RUNNING = [*QUEUED, state("running", 2, 1, attempt=1)]
SITUATIONS = {
    "enqueued, not yet seen by the dispatcher": Situation(
        [command()], [], [], [], row("queuing", enqueued_at=TIMES[0])
    ),
    "enqueued twice: the first counts": Situation(
        [command(), command(at=5, group_id="other", task_id="other")],
        [],
        [],
        [],
        row("queuing", enqueued_at=TIMES[0]),
    ),
    "asked to be cancelled, not yet seen by the dispatcher": Situation(
        [command(), command("cancel", 1)], [], [], [], row("queuing", enqueued_at=TIMES[0])
    ),
    "a cancel command for nothing": Situation([command("cancel")], [], [], [], None),
    "queuing": Situation([command()], QUEUED, [], [], row("queuing", enqueued_at=TIMES[0])),
    "running": Situation(
        [command()],
        RUNNING,
        [started()],
        [],
        row("running", num_attempts=1, enqueued_at=TIMES[0], started_at=TIMES[1]),
    ),
    "requeuing: not ended, though its attempt is": Situation(
        [command()],
        [*RUNNING, state("requeuing", 3, 2, attempt=1, attempt_status="unresponsive", error="silent")],
        [started(), ended("unresponsive", error="silent")],
        [verdict(accepted=False, reason="unresponsive")],
        row(
            "requeuing",
            num_attempts=1,
            reason="unresponsive",
            error="silent",
            enqueued_at=TIMES[0],
            started_at=TIMES[1],
        ),
    ),
    "succeeded at the second attempt": Situation(
        [command()],
        [*RUNNING, state("requeuing", 3, 2), state("running", 4, 3), state("succeeded", 5, 4, attempt=2)],
        [started(), ended("unresponsive"), started(2, 3), ended(attempt=2, at=4)],
        [verdict(accepted=False, reason="unresponsive"), verdict(2, outcome=0.5)],
        row(
            "succeeded",
            is_final=True,
            num_attempts=2,
            outcome=0.5,
            enqueued_at=TIMES[0],
            started_at=TIMES[1],
            ended_at=TIMES[4],
        ),
    ),
    "failed": Situation(
        [command()],
        [*RUNNING, state("failed", 3, 2, attempt=1, attempt_status="failed", error="it raised")],
        [started(), ended("failed", error="it raised")],
        [verdict(accepted=False, reason="outcome_not_accepted", status="failed")],
        row(
            "failed",
            is_final=True,
            num_attempts=1,
            reason="outcome_not_accepted",
            error="it raised",
            enqueued_at=TIMES[0],
            started_at=TIMES[1],
            ended_at=TIMES[2],
        ),
    ),
    "failed, which may train too": Situation(
        [command()],
        [*RUNNING, state("failed", 3, 2, attempt=1)],
        [started(), ended("failed")],
        [verdict(outcome=0.0, status="failed")],
        row(
            "failed",
            is_final=True,
            num_attempts=1,
            outcome=0.0,
            enqueued_at=TIMES[0],
            started_at=TIMES[1],
            ended_at=TIMES[2],
        ),
    ),
    "cancelled before it ran": Situation(
        [command(), command("cancel", 1)],
        [*QUEUED, state("cancelled", 2, 1, attempt=1, attempt_status="cancelled", error="cancelled")],
        [ended("cancelled", at=1, error="cancelled")],
        [],
        row(
            "cancelled",
            is_final=True,
            num_attempts=1,
            error="cancelled",
            enqueued_at=TIMES[0],
            ended_at=TIMES[1],
        ),
    ),
    "cancelled too late: it had succeeded": Situation(
        [command(), command("cancel", 3)],
        [*RUNNING, state("succeeded", 3, 2, attempt=1)],
        [started(), ended(), ended("cancelled", at=3)],
        [verdict(outcome=1.0)],
        row(
            "succeeded",
            is_final=True,
            num_attempts=1,
            outcome=1.0,
            enqueued_at=TIMES[0],
            started_at=TIMES[1],
            ended_at=TIMES[2],
        ),
    ),
    "states twice and out of order": Situation(
        [command(), command()],
        [state("succeeded", 3, 2, attempt=1), *RUNNING, *RUNNING, state("succeeded", 3, 2, attempt=1)],
        [started(), ended()],
        [verdict(outcome=1.0), verdict(outcome=1.0)],
        row(
            "succeeded",
            is_final=True,
            num_attempts=1,
            outcome=1.0,
            enqueued_at=TIMES[0],
            started_at=TIMES[1],
            ended_at=TIMES[2],
        ),
    ),
    "states alone: the command is past its retention": Situation([], RUNNING, [], [], row("running")),
    "only ran, runs": Situation([], [], [started()], [], row("running", num_attempts=1, started_at=TIMES[1])),
    "only ran, ended, without a verdict yet": Situation(
        [],
        [],
        [started(), ended()],
        [],
        row("running", num_attempts=1, started_at=TIMES[1], ended_at=TIMES[2]),
    ),
    "only ran, accepted": Situation(
        [],
        [],
        [started(), ended()],
        [verdict(outcome=1.0)],
        row("accepted", is_final=True, num_attempts=1, outcome=1.0, started_at=TIMES[1], ended_at=TIMES[2]),
    ),
    "only ran, rejected": Situation(
        [],
        [],
        [started(), ended()],
        [verdict(accepted=False, reason="incomplete")],
        row(
            "rejected",
            is_final=True,
            num_attempts=1,
            reason="incomplete",
            started_at=TIMES[1],
            ended_at=TIMES[2],
        ),
    ),
}
COLUMNS = sorted(next(s.expected for s in SITUATIONS.values() if s.expected))


def insert(client: Client, table: str, rows: list[Row]) -> None:
    """One insert a row, as parts of their own: nothing is merged yet."""
    for offset, each in enumerate(rows):
        line = orjson.dumps(each | {"kafka_offset": offset, "kafka_partition": 0}).decode()
        client.command(f"INSERT INTO {table} FORMAT JSONEachRow {line}")


def fill(client: Client, name: str, situation: Situation) -> None:
    rollout_id = an_id("rollout", name)

    def filled(rows: list[Row], *, of_attempts: bool = False) -> list[Row]:
        ids = [
            {"rollout_id": rollout_id} | ({"attempt_id": an_id(name, each["attempt"])} if of_attempts else {})
            for each in rows
        ]
        return [each | more for each, more in zip(rows, ids, strict=True)]

    insert(client, "rollouts_log", filled(situation.commands))
    insert(client, "rollout_states_log", filled(situation.states))
    insert(client, "attempts_log", filled(situation.attempts, of_attempts=True))
    insert(client, "trajectories_log", filled(situation.verdicts, of_attempts=True))


@pytest.fixture(scope="module")
def client(clickhouse: ClickHouseServer) -> Iterator[Client]:
    """A database with every situation in it at once."""
    settings = ClickHouseSettings(port=clickhouse.port, database="rollouts_view_test")
    migrate(settings, asset("clickhouse"))
    made = connect(settings)
    for table in ("rollouts_log", "rollout_states_log", "attempts_log", "trajectories_log"):
        made.command(f"SYSTEM STOP MERGES {table}")
    for name, situation in SITUATIONS.items():
        fill(made, name, situation)
    yield made
    made.command("DROP DATABASE rollouts_view_test")
    made.close()


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_rollout_s_row_says_what_became_of_it(client: Client, name: str) -> None:
    found = client.query(
        f"SELECT {', '.join(COLUMNS)} FROM rollouts WHERE rollout_id = '{an_id('rollout', name)}'"
    )
    rows = [dict(zip(COLUMNS, each, strict=True)) for each in found.result_rows]
    for each in rows:
        for column in ("enqueued_at", "started_at", "ended_at"):
            each[column] = each[column] and f"{each[column]:%Y-%m-%d %H:%M:%S.%f}"
    expected = SITUATIONS[name].expected
    assert rows == ([] if expected is None else [expected])


def test_each_rollout_has_one_row(client: Client) -> None:
    """C2."""
    num = sum(situation.expected is not None for situation in SITUATIONS.values())
    assert client.query("SELECT count(), uniqExact(rollout_id) FROM rollouts").first_row == (num, num)


def test_a_state_is_seen_once(client: Client) -> None:
    rollout_id = an_id("rollout", "states twice and out of order")
    found = client.query(
        "SELECT state, revision, is_final FROM rollout_states "
        f"WHERE rollout_id = '{rollout_id}' ORDER BY revision"
    )
    assert found.result_rows == [("queuing", 1, False), ("running", 2, False), ("succeeded", 3, True)]

"""Accounts for rollouts: what the topics say of each, by the rules, and what ClickHouse's views say of it."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from clickhouse_connect.driver.client import Client
from tests.builders import CODEC
from tests.pipeline import Pipeline
from tests.streams.runner.harness import Rollouts

from headrace.schemas.records import AttemptEvent, DeadLetter, RolloutState, Trajectory
from headrace.schemas.records.rollout import RolloutStateName
from headrace.streams.client.tail import Tail
from headrace.streams.host.store import StateStore
from headrace.streams.processors.lifecycle import DISPATCHER, FINAL, ROLLOUT, ended_as

_STEPS = {(before, after) for (before, _), after in ROLLOUT.items()}


@dataclass(frozen=True)
class Wanted:
    """How a rollout may end, and in how many attempts at most."""

    states: Collection[RolloutStateName]
    max_attempts: int


@dataclass
class Tried:
    """What the attempts log says of one attempt."""

    rollout_id: str
    number: int
    is_first: bool
    """It was the first in the log to be this attempt of its rollout: others of its number don't count."""
    runner_id: str = ""
    ends: list[AttemptEvent] = field(default_factory=list)

    @property
    def status(self) -> str:
        """The first end in the log is the one that counts (G7)."""
        return self.ends[0].status


def attempts_of(log: Rollouts) -> dict[str, Tried]:
    """Every attempt of the log, also those of which it has only an end."""
    found: dict[str, Tried] = {}
    claimed: dict[tuple[str, int], str] = {}
    for event in log.read(AttemptEvent):
        if event.kind == "heartbeat":
            continue
        if event.kind == "started" or event.runner_id == DISPATCHER:
            claimed.setdefault((event.rollout_id, event.attempt), event.attempt_id)
        is_first = claimed.get((event.rollout_id, event.attempt)) == event.attempt_id
        tried = found.setdefault(event.attempt_id, Tried(event.rollout_id, event.attempt, is_first))
        assert (tried.rollout_id, tried.number) == (event.rollout_id, event.attempt)
        if event.kind == "started":
            tried.runner_id = event.runner_id
        else:
            tried.ends.append(event)
    return found


def audit(pipeline: Pipeline, log: Rollouts, wanted: Mapping[str, Wanted]) -> dict[str, int]:
    """Assert that each rollout and attempt has one end, the same everywhere; return what was counted."""
    lives = lives_of(log)
    attempts = attempts_of(log)
    assert lives.keys() == wanted.keys() == {tried.rollout_id for tried in attempts.values()}
    finals = {rollout_id: life[-1] for rollout_id, life in lives.items()}
    for rollout_id, life in lives.items():
        check_life(life, wanted[rollout_id])
    check_attempts(finals, attempts)
    log.check_sequences()
    trained = check_trajectories(log, finals, attempts)
    assert log.read(DeadLetter) == []
    client = pipeline.client()
    try:
        check_views(client, lives, attempts, trained)
    finally:
        client.close()
    return {
        **Counter(final.state for final in finals.values()),
        "attempts": len(attempts),
        "superseded": sum(not tried.is_first for tried in attempts.values()),
        "late ends": sum(len(tried.ends) - 1 for tried in attempts.values()),
        "states repeated": len(log.values(RolloutState)) - sum(map(len, lives.values())),
    }


def lives_of(log: Rollouts) -> dict[str, list[RolloutState]]:
    """Each rollout's states in the order of the log; what is repeated there is the same bytes (G5)."""
    known: dict[tuple[str, int], bytes | None] = {}
    lives: dict[str, list[RolloutState]] = {}
    for _, _, value in log.values(RolloutState):
        state = CODEC.decode(value, RolloutState)
        revision = state.rollout_id, state.revision
        if revision not in known:
            known[revision] = value
            lives.setdefault(state.rollout_id, []).append(state)
        assert value == known[revision], revision
    return lives


def check_life(life: Sequence[RolloutState], wanted: Wanted) -> None:
    """Revisions without a gap, legal steps only, one final state, and nothing after it (G7)."""
    assert [state.revision for state in life] == list(range(1, len(life) + 1)), life
    assert life[0].state == "queuing"
    for before, after in pairwise(life):
        assert (before.state, after.state) in _STEPS, life
    assert [state.is_final for state in life] == [False] * (len(life) - 1) + [True], life
    assert [state.state in FINAL for state in life] == [state.is_final for state in life]
    assert life[-1].state in wanted.states, life
    assert 1 <= life[-1].attempt <= wanted.max_attempts, life


def check_attempts(finals: Mapping[str, RolloutState], attempts: Mapping[str, Tried]) -> None:
    """Each has an end; those that count are numbered 1 to the last, whose end is the rollout's."""
    numbers: dict[str, list[int]] = {}
    for tried in attempts.values():
        assert tried.ends, tried
        if tried.is_first:
            numbers.setdefault(tried.rollout_id, []).append(tried.number)
    for rollout_id, final in finals.items():
        assert sorted(numbers[rollout_id]) == list(range(1, final.attempt + 1)), final
        last = attempts[final.attempt_id or ""]
        assert (last.rollout_id, last.number, last.is_first) == (rollout_id, final.attempt, True), final
        assert final.attempt_status == ended_as(last.ends[0]), final
        ends_well = {"succeeded": "succeeded", "cancelled": "cancelled"}
        assert final.state == ends_well.get(last.status, "failed")


def check_trajectories(
    log: Rollouts, finals: Mapping[str, RolloutState], attempts: Mapping[str, Tried]
) -> set[str]:
    """One verdict an attempt; the one that trains is the one with which its rollout succeeded (C1)."""
    verdicts: dict[str, Trajectory] = {}
    for verdict in log.read(Trajectory):
        assert verdict == verdicts.setdefault(verdict.attempt_id, verdict)
    assert verdicts.keys() == attempts.keys()
    for attempt_id, tried in attempts.items():
        verdict = verdicts[attempt_id]
        assert verdict.status == tried.status, verdict
        assert (verdict.reason == "superseded") == (not tried.is_first), verdict
    trained = {attempt_id for attempt_id, verdict in verdicts.items() if verdict.accepted}
    assert trained == {final.attempt_id for final in finals.values() if final.state == "succeeded"}
    return trained


def check_views(
    client: Client,
    lives: Mapping[str, Sequence[RolloutState]],
    attempts: Mapping[str, Tried],
    trained: Collection[str],
) -> None:
    """ClickHouse counts by distinct ids, and as the topics (C2)."""
    num_attempts = Counter(tried.rollout_id for tried in attempts.values())
    rows = client.query(
        "SELECT rollout_id, state, is_final, num_attempts, ended_at FROM rollouts"
    ).result_rows
    assert sorted(row[:4] for row in rows) == sorted(
        (rollout_id, life[-1].state, True, num_attempts[rollout_id]) for rollout_id, life in lives.items()
    )
    assert all(row[4] is not None for row in rows)
    rows = client.query("SELECT rollout_id, revision, state, is_final FROM rollout_states").result_rows
    assert sorted(rows) == sorted(
        (state.rollout_id, state.revision, state.state, state.is_final)
        for life in lives.values()
        for state in life
    )
    rows = client.query(
        "SELECT attempt_id, rollout_id, attempt, status, state, num_late_ends FROM attempts"
    ).result_rows
    assert sorted(rows) == sorted(
        (
            attempt_id,
            tried.rollout_id,
            tried.number,
            tried.status,
            "accepted" if attempt_id in trained else "rejected",
            len(tried.ends) - 1,
        )
        for attempt_id, tried in attempts.items()
    )
    rows = client.query("SELECT attempt_id FROM transitions WHERE accepted").result_rows
    assert sorted(row[0] for row in rows) == sorted(trained)


def check_forgotten(log: Rollouts, rollout_ids: Collection[str]) -> None:
    """C5: of finished rollouts the stopped dispatcher keeps two marks each, on disk and in its changelog."""
    group = f"{log.kafka.topic_prefix}-dispatcher"
    with Tail(log.kafka, name="audit") as tail:
        places = tail.places(f"{group}-state-changelog")
        changes = list(tail.read(tail.beginnings(places), tail.ends(places)))
    newest = {(change.place.partition, change.key or b""): change.value for change in changes}
    kept = {place: value for place, value in newest.items() if value is not None}
    marks = Counter(key[:1] for _, key in kept)
    assert marks == {b"f": len(rollout_ids), b"e": len(rollout_ids)}
    assert {key[1:].decode() for _, key in kept if key[:1] == b"f"} == set(rollout_ids)
    store = StateStore(
        log.folder / "state" / group,
        "state",
        block_cache_bytes=1 << 20,
        write_buffer_bytes=1 << 20,
        max_age_s=3600,
    )
    try:
        on_disk = {
            (place.partition, key): value
            for place in places
            for key, value in store[place.partition].scan(b"")
        }
    finally:
        store.close_all()
    assert on_disk == kept

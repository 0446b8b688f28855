"""Rollouts in words. Tasks may hold prompts: they are shown when asked for."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from rich.console import Console
from rich.text import Text

from headrace.cli.cells import visible
from headrace.cli.tables import Column, print_table
from headrace.schemas.ids import uuid7_time_ms
from headrace.schemas.records import RolloutCommand, RolloutState
from headrace.streams.client.rollout_history import RolloutHistory

STYLES = {
    "queuing": "dim",
    "requeuing": "yellow",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "yellow",
}
_ORDER = ("queuing", "preparing", "running", "requeuing", "succeeded", "failed", "cancelled")
_UNSUCCESSFUL_SHOWN = 20


def enqueued_at(rollout_id: str) -> datetime:
    """By its id."""
    return datetime.fromtimestamp(uuid7_time_ms(rollout_id) / 1000, UTC)


def counted(counts: Mapping[str, int]) -> str:
    """`3 running, 12 succeeded`, in the order of a rollout's life."""
    return ", ".join(f"{counts[name]:,} {name}" for name in _ORDER if counts.get(name))


def print_list(console: Console, shown: Sequence[RolloutState], num_found: int) -> None:
    columns = [
        Column("enqueued at", is_whole=True),
        Column("rollout", is_whole=True),
        Column("group"),
        Column("task"),
        Column("mode", is_whole=True),
        Column("state", is_whole=True),
        Column("attempt", is_number=True),
        Column("error"),
    ]
    rows = [
        [
            f"{enqueued_at(state.rollout_id):%Y-%m-%d %H:%M:%S}",
            state.rollout_id,
            "" if state.group_id == state.rollout_id else state.group_id,
            state.task_id,
            state.mode,
            _styled(state.state),
            state.attempt or "",
            state.error or "",
        ]
        for state in shown
    ]
    if rows:
        print_table(console, columns, rows)
    words = f"{num_found:,} rollout{'s' * (num_found != 1)}"
    if len(shown) < num_found:
        words += f", the newest {len(shown):,} shown; --limit 0 shows all"
    console.print(Text(words + (", times in UTC" if rows else ""), style="dim"))


def print_history(console: Console, rollout_id: str, history: RolloutHistory) -> None:
    newest = history.states[-1] if history.states else None
    about = newest or history.enqueued
    facts = [("rollout", rollout_id)]
    if about is not None:
        facts += [
            ("group", f"{about.group_id}, {about.group_size} rollout{'s' * (about.group_size != 1)}"),
            ("task", about.task_id or "no id"),
            ("mode", about.mode),
            *(("metadata", f"{name}={value}") for name, value in sorted(about.metadata.items())),
        ]
    if history.enqueued is not None:
        facts += _how(history.enqueued)
    facts += [
        (command.kind, _utc(command.time)) for command in history.commands if command != history.enqueued
    ]
    facts.append(("state", newest.state if newest else "queuing"))
    for name, text in facts:
        console.print(Text.assemble((f"{name:14}", "bold"), visible(text)), soft_wrap=True)
    console.print()
    _print_states(console, history.states)
    errors = [state for state in history.states if state.error]
    if errors:
        console.print(
            Text.assemble(("last error    ", "bold"), visible(errors[-1].error or "")), soft_wrap=True
        )


def print_summary(console: Console, states: Sequence[RolloutState]) -> None:
    """What became of them, and which did not succeed."""
    console.print(Text(f"{counted(Counter(state.state for state in states))}, of {len(states):,}"))
    bad = [state for state in states if state.state != "succeeded"]
    for state in bad[:_UNSUCCESSFUL_SHOWN]:
        how = f" ({state.attempt_status})" if state.attempt_status not in {None, state.state} else ""
        why = f": {visible(state.error)}" if state.error else ""
        attempts = f", attempt {state.attempt}" if state.attempt > 1 else ""
        line = Text.assemble(f"{state.rollout_id}  ", _styled(state.state), f"{how}{attempts}{why}")
        console.print(line, soft_wrap=True)
    if len(bad) > _UNSUCCESSFUL_SHOWN:
        console.print(Text(f"and {len(bad) - _UNSUCCESSFUL_SHOWN:,} more", style="dim"))


def described(state: RolloutState) -> dict[str, object]:
    """A state for programs."""
    return state.model_dump(mode="json") | {"enqueued_at": enqueued_at(state.rollout_id)}


def described_history(rollout_id: str, history: RolloutHistory, *, with_task: bool) -> dict[str, object]:
    """A rollout's life for programs."""
    enqueued = history.enqueued
    last_error = next((state.error for state in reversed(history.states) if state.error), None)
    found: dict[str, object] = {
        "rollout_id": rollout_id,
        "state": history.states[-1].state if history.states else "queuing",
        "attempts": max((state.attempt for state in history.states), default=0),
        "last_error": last_error,
    }
    if enqueued is not None:
        left_out = set() if with_task else {"task"}
        found |= enqueued.model_dump(mode="json", exclude={"kind", "rollout_id", "time"} | left_out)
    times = {kind: [c.time for c in history.commands if c.kind == kind] for kind in ("enqueue", "cancel")}
    return found | {
        "enqueued_at": min(times["enqueue"], default=None),
        "cancels": times["cancel"],
        "states": [
            state.model_dump(mode="json", exclude={"rollout_id", "group_id", "group_size", "task_id", "mode"})
            for state in history.states
        ],
    }


def _how(command: RolloutCommand) -> list[tuple[str, str]]:
    config = command.config
    return [
        ("enqueued", _utc(command.time)),
        ("timeout", f"{config.timeout_s:g} s, heartbeats every {config.heartbeat_timeout_s:g} s at most"),
        ("attempts", f"{config.max_attempts} at most, again on {', '.join(config.retry_on) or 'nothing'}"),
        ("accepts", f"{', '.join(config.accept) or 'nothing'}, {config.credit_rule}"),
        *(("pinned", f"{name} {version}") for name, version in sorted(command.resources.items())),
    ]


def _print_states(console: Console, states: Sequence[RolloutState]) -> None:
    columns = [
        Column("time", is_whole=True),
        Column("state", is_whole=True),
        Column("attempt", is_number=True),
        Column("attempt id", is_whole=True),
        Column("ended as", is_whole=True),
        Column("error"),
    ]
    rows = [
        [
            f"{state.time:%Y-%m-%d %H:%M:%S.%f}",
            _styled(state.state),
            state.attempt or "",
            state.attempt_id or "",
            state.attempt_status or "",
            state.error or "",
        ]
        for state in states
    ]
    if rows:
        print_table(console, columns, rows)
    else:
        console.print(Text("no state yet: the dispatcher has not seen it", style="dim"))


def _styled(state: str) -> Text:
    return Text(state, style=STYLES.get(state, ""))


def _utc(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f} UTC"

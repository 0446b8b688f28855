"""`headrace rollouts`: hand over tasks, see what became of them, wait, cancel."""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, get_args

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from headrace.cli.dead_letter_options import Since
from headrace.cli.endpoints import codec, existing_topics, kafka_settings
from headrace.cli.examples import examples
from headrace.cli.json_lines import print_json_lines
from headrace.cli.rollout_options import (
    PairType,
    PinType,
    config_of,
    config_options,
    ids_of,
    mode_option,
    output_option,
    which_rollouts,
)
from headrace.cli.rollout_view import (
    counted,
    described,
    described_history,
    print_history,
    print_list,
    print_summary,
)
from headrace.cli.task_lines import read_tasks, task_ids
from headrace.cli.topic_commands import as_json
from headrace.schemas.records.rollout import Mode, RolloutStateName
from headrace.streams.client.rollout_errors import UnknownRolloutError
from headrace.streams.client.rollout_history import read_history, scan_rollouts
from headrace.streams.client.rollouts import Client, checked_ids
from headrace.streams.settings import KafkaSettings

if TYPE_CHECKING:
    from headrace.schemas.records import RolloutState

_CHUNK = 500
_WINDOW = timedelta(days=1)


@click.group(
    epilog=examples(
        "headrace rollouts enqueue tasks.jsonl --num-samples 8 --wait",
        "headrace rollouts list --state running",
        "headrace rollouts show 019a5d3e-…",
    )
)
def rollouts() -> None:
    """Hand over tasks, see what became of them, wait, cancel.

    A rollout is one run of a task to its end, in as many attempts as it takes. States are read from Kafka's
    topics: what is acknowledged is seen at once.
    """


@rollouts.command(
    epilog=examples(
        "headrace rollouts enqueue tasks.jsonl --num-samples 8 --wait",
        "headrace rollouts enqueue tasks.jsonl --mode val --resource policy=12 --output ids.txt",
        "headrace rollouts enqueue tasks.jsonl --timeout 120 --retry-on timeout --retry-on unresponsive",
        "jq -c .[] tasks.json | headrace rollouts enqueue -",
    )
)
@click.argument("tasks", type=click.File("rb"), metavar="TASKS.jsonl")
@mode_option
@click.option(
    "--num-samples",
    "-n",
    type=click.IntRange(1, 100_000),
    default=1,
    show_default=True,
    help="Rollouts of each task, in one group.",
)
@config_options
@click.option(
    "--resource", "pins", type=PinType(), multiple=True, metavar="NAME=VERSION", help="A pinned version."
)
@click.option("--metadata", type=PairType(), multiple=True, metavar="NAME=VALUE", help="Of every rollout.")
@click.option("--task-id", "task_id_field", metavar="FIELD", help="The tasks' field that names them.")
@click.option(
    "--wait", "is_waiting", is_flag=True, help="Until all are final; exit status 1 unless all succeeded."
)
@output_option("Write the ids there, one a line, not to the standard output.")
def enqueue(
    tasks: IO[bytes],
    *,
    mode: Mode,
    num_samples: int,
    pins: Sequence[tuple[str, int]],
    metadata: Sequence[tuple[str, str]],
    task_id_field: str | None,
    is_waiting: bool,
    output: Path | None,
    **options: Any,  # noqa: ANN401  the config's
) -> None:
    """Enqueue each line of TASKS.jsonl, one JSON value, as a task; - for the standard input.

    Every line is checked before any is enqueued. Ids are printed as Kafka acknowledges their rollouts.
    """
    found = read_tasks(tasks)
    names = task_ids(found, task_id_field) if task_id_field else [""] * len(found)
    settings = _reachable()
    ids: list[str] = []
    with ExitStack() as stack:
        client = stack.enter_context(Client(settings, codec=codec()))
        out = stack.enter_context(click.open_file(str(output or "-"), "w"))
        progress = stack.enter_context(_progress())
        bar = progress.add_task("enqueued", total=len(found) * num_samples)
        for start in range(0, len(found), _CHUNK):
            part = slice(start, start + _CHUNK)
            enqueued = client.enqueue(
                found[part],
                mode=mode,
                num_samples=num_samples,
                config=config_of(options),
                resources=dict(pins),
                metadata=dict(metadata),
                task_ids=names[part],
            )
            ids += [each.rollout_id for each in enqueued]
            if output or not is_waiting:
                out.writelines(f"{each.rollout_id}\n" for each in enqueued)
                out.flush()
            progress.update(bar, completed=len(ids))
    click.echo(f"{len(ids):,} rollouts of {len(found):,} tasks are enqueued", err=True)
    if is_waiting:
        _wait(settings, ids, None)


@rollouts.command(
    "list",
    epilog=examples(
        "headrace rollouts list",
        "headrace rollouts list --state failed --since 2h",
        "headrace rollouts list --json --limit 0 | jq -r .state | sort | uniq -c",
    ),
)
@click.option(
    "--state",
    "states",
    type=click.Choice(get_args(RolloutStateName)),
    multiple=True,
    help="In this state; may be given again.",
)
@click.option("--mode", type=click.Choice(get_args(Mode)))
@click.option("--group", "-g", help="Of this group.")
@click.option(
    "--since",
    type=Since(),
    help="Enqueued or changed since then: 15m, 2h, 7d, or an ISO time (UTC).  [default: 1d]",
)
@click.option(
    "--limit", type=click.IntRange(min=0), default=50, show_default=True, help="The newest; 0 for all."
)
@as_json
def list_rollouts(
    *,
    states: Sequence[str],
    mode: str | None,
    group: str | None,
    since: datetime | None,
    limit: int,
    as_json: bool,
) -> None:
    """List rollouts with their present state, the newest last."""
    settings = _reachable()
    begin = since or datetime.now(UTC) - _WINDOW
    with Console(stderr=True).status("reading the rollouts"):
        everything = scan_rollouts(settings, codec(), since_ms=int(begin.timestamp() * 1000)).values()
    found = sorted(
        (
            state
            for state in everything
            if (not states or state.state in states)
            and mode in {None, state.mode}
            and group in {None, state.group_id}
        ),
        key=lambda state: state.rollout_id,
    )
    shown = found[-limit:] if limit else found
    if as_json:
        print_json_lines(map(described, shown))
    else:
        print_list(Console(), shown, len(found))


@rollouts.command(
    epilog=examples(
        "headrace rollouts show 019a5d3e-…", "headrace rollouts show 019a5d3e-… --task --json | jq .task"
    )
)
@click.argument("rollout_id", metavar="ID")
@click.option("--task", "with_task", is_flag=True, help="Its task too.")
@as_json
def show(rollout_id: str, *, with_task: bool, as_json: bool) -> None:
    """Show a rollout: how it shall run, its states in order, its attempts and its last error.

    The task is shown with --task only: it may hold prompts.
    """
    (rollout_id,) = checked_ids([rollout_id])
    history = read_history(_reachable(), codec(), rollout_id)
    if not history.states and history.enqueued is None:
        raise UnknownRolloutError([rollout_id])
    if as_json:
        print_json_lines([described_history(rollout_id, history, with_task=with_task)])
        return
    console = Console()
    print_history(console, rollout_id, history)
    if with_task:
        task = history.enqueued.task if history.enqueued else "its command is past the topic's retention"
        console.print()
        console.print(_indented(task), markup=False, highlight=False, soft_wrap=True)


@rollouts.command(
    epilog=examples(
        "headrace rollouts wait --file ids.txt --timeout 600",
        "headrace rollouts wait --group 019a5d3e-…",
        "headrace rollouts enqueue tasks.jsonl | headrace rollouts wait --file -",
    )
)
@which_rollouts
@click.option(
    "--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Give up then.  [default: never]"
)
def wait(ids: Sequence[str], *, file: IO[str] | None, group: str | None, timeout: float | None) -> None:
    """Wait until rollouts are final, and say what became of them.

    The exit status is 0 only if all succeeded. When the time is over, the error says which are not final.
    """
    settings = _reachable()
    _wait(settings, checked_ids(ids_of(ids, file, group, settings, codec())), timeout)


@rollouts.command(
    epilog=examples("headrace rollouts cancel 019a5d3e-…", "headrace rollouts cancel --file ids.txt")
)
@which_rollouts
def cancel(ids: Sequence[str], *, file: IO[str] | None, group: str | None) -> None:
    """Cancel rollouts: those that run are ended, those that wait never run.

    One that is final stays as it is. `headrace rollouts wait` says how each ended.
    """
    settings = _reachable()
    wanted = checked_ids(ids_of(ids, file, group, settings, codec()))
    with Client(settings, codec=codec()) as client:
        states = client.status(wanted)
        unknown = [rollout_id for rollout_id, state in states.items() if state is None]
        if unknown:
            raise UnknownRolloutError(unknown)
        left = [rollout_id for rollout_id, state in states.items() if state and not state.is_final]
        client.cancel(left)
    words = f"{len(left):,} rollout{'s' * (len(left) != 1)} asked to end as cancelled"
    num_final = len(wanted) - len(left)
    click.echo(words + (f"; {num_final:,} had ended before" if num_final else ""))


def _wait(settings: KafkaSettings, ids: Sequence[str], timeout_s: float | None) -> None:
    """Follow them with a bar, print a summary, and leave with 1 unless all succeeded."""
    known: dict[str, RolloutState] = {}
    counts: Counter[str] = Counter()
    num_final = 0
    with Client(settings, codec=codec()) as client, _progress() as progress:
        bar = progress.add_task("waiting", total=len(ids))
        for state in client.follow(ids, timeout_s=timeout_s):
            before = known.get(state.rollout_id)
            counts[state.state] += 1
            if before is not None:
                counts[before.state] -= 1
            known[state.rollout_id] = state
            num_final += state.is_final
            progress.update(bar, completed=num_final, description=counted(counts))
    print_summary(Console(), [known[rollout_id] for rollout_id in ids])
    if any(state.state != "succeeded" for state in known.values()):
        sys.exit(1)


def _progress() -> Progress:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


def _reachable() -> KafkaSettings:
    settings = kafka_settings(quiet=True)
    existing_topics(settings)
    return settings


def _indented(text: str) -> str:
    return json.dumps(json.loads(text), indent=2, ensure_ascii=False)

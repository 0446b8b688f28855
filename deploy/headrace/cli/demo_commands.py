"""`headrace demo`."""

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from headrace.cli.demo.account import Account, Published, take_account
from headrace.cli.demo.workload import Poison, Workload, make_workload
from headrace.cli.ingest_commands import DEMO_FILES
from headrace.schemas.errors import FatalError
from headrace.schemas.records import Record, Span
from headrace.schemas.topics import topic_name, topic_specs
from headrace.streams.ingest.source import Source

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

    from headrace.cli.demo.stack import DemoStack
    from headrace.streams.client.publisher import Publisher

GRACE_S = 2.0
"""For stragglers and outcomes: short, so that the demo needs not wait long for what it lost on purpose."""

STORY = {
    "Attempts by outcome and reason": """\
SELECT status, state, reason, num_attempts AS attempts, round(mean_outcome, 3) AS mean_outcome
FROM attempts_by_outcome""",
    "Transitions": """\
SELECT accepted, trainable, count() AS transitions, sum(length(response_token_ids)) AS response_tokens,
       round(avg(reward), 3) AS mean_reward
FROM transitions GROUP BY accepted, trainable ORDER BY transitions DESC""",
    "Reward by policy version": """\
SELECT resource_name, resource_version AS version, num_attempts AS attempts, num_transitions AS transitions,
       round(mean_reward, 3) AS mean_reward, round(std_reward, 3) AS std_reward
FROM reward_by_version""",
    "One attempt, step by step": """\
SELECT step, sequence_id, prefix_len, prompt_token_ids, response_token_ids, round(reward, 3) AS reward
FROM transitions WHERE attempt_id = (
    SELECT attempt_id FROM trajectories WHERE accepted ORDER BY num_transitions DESC, attempt_id LIMIT 1)
ORDER BY step""",
    "Dead letters": """\
SELECT topic, reason, count() AS records FROM dead_letters GROUP BY topic, reason ORDER BY records DESC""",
}


@click.command()
@click.option(
    "--attempts", type=click.IntRange(min=1), default=2500, show_default=True, help="Generated attempts."
)
@click.option("--poison", type=click.IntRange(min=0), default=40, show_default=True, help="Bad records.")
@click.option("--seed", type=int, default=7, show_default=True, help="Of the generated attempts.")
@click.option(
    "--limit-s",
    type=click.FloatRange(min=1),
    default=150.0,
    show_default=True,
    help="How long the pipeline may take.",
)
@click.option(
    "--traces",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="Recorded traces to ingest, instead of the small set that comes with headrace.",
)
def demo(*, attempts: int, poison: int, seed: int, limit_s: float, traces: tuple[Path, ...]) -> None:
    """Run the whole pipeline on this machine, and account for every record.

    Starts Kafka, ClickHouse and the processors, ingests recorded traces and a generated stream of
    attempts (out of order, with duplicates, holes and poison), waits until nothing is left to do, and
    shows in SQL what came of it. The exit status is 0 only if nothing was lost, doubled or changed.
    """
    from headrace.cli.demo.stack import demo_stack  # noqa: PLC0415  Kafka's and ClickHouse's clients
    from headrace.streams.clickhouse import connect  # noqa: PLC0415  an extra

    console = Console()
    began = time.monotonic()
    with ExitStack() as cleanup:
        stack = cleanup.enter_context(demo_stack(console, straggler_grace_s=GRACE_S))
        workload = make_workload(attempts, poison, seed=seed, start=datetime.now(UTC), grace_s=GRACE_S)
        published = _publish(stack, workload, traces or DEMO_FILES, console)
        client = connect(stack.clickhouse)
        cleanup.callback(client.close)

        def num_finalized() -> int:
            return int(client.query("SELECT count() FROM trajectories").first_row[0])

        _wait(stack, len(published.attempts), num_finalized, console, limit_s)
        _tell_story(stack, console)
        account = take_account(client, published, workload.expected)
    _print_result(account, time.monotonic() - began, stack.home, console)
    sys.exit(0 if account.is_clean else 1)


def _publish(stack: "DemoStack", workload: Workload, traces: tuple[Path, ...], console: Console) -> Published:
    """Publish everything; return what that was, once Kafka has acknowledged it."""
    from headrace.streams.client.publisher import Publisher  # noqa: PLC0415  brings Kafka's client

    published = Published()
    recorded = [item for item in Source(traces) if isinstance(item, Record)]
    items: list[Record | Poison] = [*recorded, *workload.items]
    spans = topic_name(Span, stack.kafka.topic_prefix)
    with _progress(console) as progress, Publisher(stack.kafka) as publisher:
        task = progress.add_task("publishing", total=len(items))
        for item in items:
            if isinstance(item, Poison):
                _publish_poison(publisher, spans, item, published)
            else:
                publisher.publish(item)
                published.add(item)
            progress.advance(task)
    calls = sum(1 for item in recorded if isinstance(item, Span) and item.generation is not None)
    console.print(
        f"published {len(items)} records: {calls} recorded model calls, {len(workload.expected)} generated "
        f"attempts, {len(published.poison)} bad records",
        highlight=False,
        soft_wrap=True,
    )
    return published


def _publish_poison(publisher: "Publisher", topic: str, item: Poison, published: Published) -> None:
    def remember(error: "KafkaError | None", message: "Message") -> None:
        if error is not None:
            raise FatalError(f"Kafka did not take a record: {error.str()}")
        published.poison.add((topic, message.partition() or 0, message.offset() or 0))

    publisher.publish_bytes(topic, item.key, item.value, on_delivery=remember)


def _wait(
    stack: "DemoStack", num_attempts: int, num_finalized: Callable[[], int], console: Console, limit_s: float
) -> None:
    """Until every attempt has its verdict in ClickHouse and no group has anything left to read."""
    from headrace.streams.client.admin import group_lag  # noqa: PLC0415  brings Kafka's client

    prefix = stack.kafka.topic_prefix
    assembled = [topic_specs()[name].full_name(prefix) for name in ("attempts", "spans", "rewards")]
    stored = [spec.full_name(prefix) for spec in topic_specs().values()]
    deadline = time.monotonic() + limit_s
    with _progress(console) as progress:
        task = progress.add_task("assembling", total=num_attempts)
        while True:
            stack.check()
            finalized = num_finalized()
            behind = sum(group_lag(stack.kafka, f"{prefix}-assembler", assembled).values())
            unstored = sum(group_lag(stack.kafka, f"{prefix}-sink", stored).values())
            words = f"assembling, {behind} to assemble, {unstored} to store"
            progress.update(task, completed=finalized, description=words)
            if finalized >= num_attempts and behind == 0 and unstored == 0:
                progress.update(task, description="assembled, and nothing is left to read")
                return
            if time.monotonic() > deadline:
                raise FatalError(
                    f"not done within {limit_s:g} s: {finalized} of {num_attempts} attempts finalized, "
                    f"lag {behind} (assembler) and {unstored} (sink); logs are in {stack.home / 'logs'}"
                )
            time.sleep(0.25)


def _tell_story(stack: "DemoStack", console: Console) -> None:
    from headrace.cli.sql_commands import show  # noqa: PLC0415  an extra
    from headrace.streams.clickhouse import connect  # noqa: PLC0415

    client = connect(stack.clickhouse)
    for title, statement in STORY.items():
        console.print()
        console.print(title, style="bold", highlight=False)
        console.print(statement, style="dim", markup=False, highlight=False, soft_wrap=True)
        show(client, statement, console)
    client.close()


def _print_result(account: Account, seconds: float, home: Path, console: Console) -> None:
    console.print()
    for words in account.words:
        console.print(words, style="red", markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"Look around: HEADRACE_HOME={_short(home)} headrace up --detach, then "
        f"HEADRACE_HOME={_short(home)} headrace sql",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    verdict = "ok" if account.is_clean else f"FAILED wrong={account.wrong}"
    click.echo(
        f"demo {verdict} attempts={account.attempts} transitions={account.transitions} "
        f"incomplete={account.incomplete} dead_letters={account.dead_letters} lost={account.lost} "
        f"duplicated={account.duplicated} seconds={seconds:.1f}"
    )


def _short(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )

"""`headrace demo-data`."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from headrace.cli.demo.account import Account, Published, take_account
from headrace.cli.demo.script import GROUP_SIZE, config, credit_rule_of, script
from headrace.cli.ingest_commands import DEMO_FILES
from headrace.schemas.errors import FatalError
from headrace.schemas.ids import uuid7
from headrace.schemas.records import Record, RolloutCommand, Span, now
from headrace.schemas.topics import topic_name
from headrace.streams.ingest.source import Source
from headrace.streams.topology import PIPELINE

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

    from headrace.cli.demo.stack import DemoStack
    from headrace.streams.client.publisher import Publisher

GRACE_S = 2.0
"""For stragglers and outcomes: short, so that the demo needs not wait long for what it lost on purpose."""
CONCURRENCY = 64
AGENT = "headrace.cli.demo.agent:play"
PROCESSORS = ("dispatcher", "assembler", "batcher", "sink")

STORY = {
    "Rollouts": """\
SELECT state, count() AS rollouts, sum(num_attempts) AS attempts FROM rollouts GROUP BY state""",
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
@click.option("--rollouts", type=click.IntRange(min=1), default=2500, show_default=True, help="To be run.")
@click.option("--poison", type=click.IntRange(min=0), default=40, show_default=True, help="Bad records.")
@click.option("--seed", type=int, default=7, show_default=True, help="Of the rollouts' scripts.")
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
def demo_data(*, rollouts: int, poison: int, seed: int, limit_s: float, traces: tuple[Path, ...]) -> None:
    """Run the whole pipeline on this machine, and account for every record.

    Starts Kafka, ClickHouse, the processors and a runner. Recorded traces are ingested, and rollouts are
    dispatched to a scripted agent that publishes out of order, twice or not at all, fails and hangs; bad
    records come between. When nothing is left to do, SQL shows what came of it. The exit status is 0 only if
    nothing was lost, doubled or changed.
    """
    from headrace.cli.demo.stack import demo_stack  # noqa: PLC0415  Kafka's and ClickHouse's clients
    from headrace.streams.clickhouse import connect  # noqa: PLC0415  an extra

    console = Console()
    began = time.monotonic()
    with ExitStack() as cleanup:
        stack = cleanup.enter_context(
            demo_stack(
                console,
                "demo-data",
                processors=PROCESSORS,
                environment={"HEADRACE_ASSEMBLER_STRAGGLER_GRACE_S": str(GRACE_S)},
            )
        )
        runner = stack.process("runner", AGENT, HEADRACE_RUNNER_CONCURRENCY=str(CONCURRENCY))
        stack.start(runner)
        published = Published()
        deadline = time.monotonic() + limit_s
        _publish(stack, published, traces or DEMO_FILES, poison, console)
        _roll_out(stack, published, rollouts, seed=seed, console=console, deadline=deadline)
        client = connect(stack.clickhouse)
        cleanup.callback(client.close)

        def num_finalized() -> int:
            return int(client.query("SELECT count() FROM trajectories").first_row[0])

        _wait(stack, published.num_attempts, num_finalized, console=console, deadline=deadline)
        _tell_story(stack, console)
        account = take_account(client, published)
    _print_result(account, time.monotonic() - began, stack.home, console)
    sys.exit(0 if account.is_clean else 1)


def _publish(
    stack: "DemoStack", published: Published, traces: Sequence[Path], num_poison: int, console: Console
) -> None:
    """Publish recorded traces, and bytes that are no records."""
    from headrace.streams.client.publisher import Publisher  # noqa: PLC0415  brings Kafka's client

    num_calls = 0
    with Publisher(stack.kafka) as publisher:
        for item in Source(traces):
            if isinstance(item, Record):
                publisher.publish(item)
                published.add(item)
                num_calls += isinstance(item, Span) and item.generation is not None
        for number in range(num_poison):
            _publish_poison(publisher, topic_name(Span, stack.kafka.topic_prefix), number, published)
    console.print(f"published {num_calls} recorded model calls and {num_poison} bad records", highlight=False)


def _publish_poison(publisher: "Publisher", topic: str, number: int, published: Published) -> None:
    """Bad magic, an unknown schema id, a body cut short, no Avro at all."""

    def remember(error: "KafkaError | None", message: "Message") -> None:
        if error is not None:
            raise FatalError(f"Kafka did not take a record: {error.str()}")
        published.poison.add((topic, message.partition() or 0, message.offset() or 0))

    kinds = (b"\x07\x00\x00\x03\xf0 bad magic", b"\x00\x7f\xff\xff\xfe no such schema", b"\x00\x00", b"{}")
    publisher.publish_bytes(topic, uuid7().encode(), kinds[number % len(kinds)], on_delivery=remember)


def _roll_out(
    stack: "DemoStack",
    published: Published,
    num_rollouts: int,
    *,
    seed: int,
    console: Console,
    deadline: float,
) -> None:
    """Hand rollouts over and wait until each is in a final state."""
    from headrace.streams.client.rollouts import Client  # noqa: PLC0415  brings Kafka's client

    commands = []
    for number in range(num_rollouts):
        group = number // GROUP_SIZE
        command = RolloutCommand(
            kind="enqueue",
            rollout_id=uuid7(),
            group_id=f"demo-group-{group}",
            group_size=GROUP_SIZE,
            task_id=f"task-{group % 25}",
            task=json.dumps({"seed": seed, "number": number}),
            config=config(GRACE_S, credit_rule_of(number)),
            time=now(),
        )
        commands.append(command)
        attempt = 1
        plan = published.scripts[command.rollout_id, attempt] = script(seed, number, attempt)
        if plan.is_tried_again:
            published.scripts[command.rollout_id, attempt + 1] = script(seed, number, attempt + 1)
    with _progress(console) as progress, Client(stack.kafka) as client:
        task = progress.add_task("running rollouts", total=num_rollouts)
        client.submit(commands)
        ids = [command.rollout_id for command in commands]
        for _ in client.wait(ids, timeout_s=max(1.0, deadline - time.monotonic())):
            stack.check()
            progress.advance(task)


def _wait(
    stack: "DemoStack",
    num_attempts: int,
    num_finalized: Callable[[], int],
    *,
    console: Console,
    deadline: float,
) -> None:
    """Until every attempt has its verdict in ClickHouse and no group has anything left to read."""
    from headrace.streams.client.admin import group_lag  # noqa: PLC0415  brings Kafka's client

    prefix = stack.kafka.topic_prefix
    with _progress(console) as progress:
        task = progress.add_task("assembling", total=num_attempts)
        while True:
            stack.check()
            finalized = num_finalized()
            lags = {
                stage.name: sum(group_lag(stack.kafka, stage.group(prefix), stage.topics(prefix)).values())
                for stage in PIPELINE
                if stage.name in PROCESSORS
            }
            words = ", ".join(f"{name} {lag} behind" for name, lag in lags.items())
            progress.update(task, completed=finalized, description=f"assembling: {words}")
            if finalized >= num_attempts and not any(lags.values()):
                progress.update(task, description="assembled, and nothing is left to read")
                return
            if time.monotonic() > deadline:
                raise FatalError(
                    f"not done in time: {finalized} of {num_attempts} attempts finalized; {words}; "
                    f"logs are in {stack.home / 'logs'}"
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

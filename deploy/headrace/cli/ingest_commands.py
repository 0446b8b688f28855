"""`headrace ingest`: recorded traces into Kafka."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from headrace.cli.endpoints import existing_topics, kafka_settings
from headrace.schemas.errors import HeadraceError
from headrace.schemas.records import AttemptEvent, Record, Reward, Span
from headrace.schemas.records.rollout import Mode
from headrace.streams.ingest.bad_input import BadInputError
from headrace.streams.ingest.conversations import DEFAULT_WINDOW
from headrace.streams.ingest.openai_chats import Grouping
from headrace.streams.ingest.source import Format, Source

if TYPE_CHECKING:
    from headrace.streams.client.publisher import Publisher

DEMO_FILES = tuple(sorted((Path(__file__).parent / "demo_data").glob("*.json*")))
"""Small files of both formats, our own writing, for the demo and a first try."""

_BAD_LINES_SHOWN = 20


@click.command()
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["auto", "openai-chats", "otlp"]),
    default="auto",
    show_default=True,
    help="Of every file; auto: by content.",
)
@click.option(
    "--group",
    type=click.Choice(["conversation", "line"]),
    default="conversation",
    show_default=True,
    help="What of chat pairs is one attempt. conversation: a line whose messages begin with an earlier "
    "line's messages and its answer is that attempt's next turn.",
)
@click.option(
    "--window",
    type=click.IntRange(min=1),
    default=DEFAULT_WINDOW,
    show_default=True,
    help="How many lines back an earlier turn is looked for.",
)
@click.option(
    "--mode",
    type=click.Choice(["train", "val", "test"]),
    default="train",
    show_default=True,
    help="Of the rollouts; val and test never train.",
)
@click.option("--allow-bad", is_flag=True, help="Exit with 0 in spite of bad lines.")
@click.option("--dry-run", is_flag=True, help="Read and count; publish nothing.")
def ingest(
    files: tuple[Path, ...],
    *,
    file_format: str,
    group: Grouping,
    window: int,
    mode: Mode,
    allow_bad: bool,
    dry_run: bool,
) -> None:
    """Publish recorded traces: OpenAI chat pairs (JSONL) or OTLP/JSON traces, gzip or not.

    Reading a file again publishes the same records with the same ids. Lines that can't be read are
    counted, shown, kept in dead-letters, and make the exit status 1.
    """
    counts: Counter[str] = Counter()
    console = Console(stderr=True)
    with _progress(files, console) as progress, _publisher(dry_run=dry_run) as publisher:
        task = progress.add_task("reading", total=sum(path.stat().st_size for path in files))
        source = Source(
            files,
            file_format=_FORMATS[file_format],
            group=group,
            mode=mode,
            window=window,
            on_bytes=lambda amount: progress.advance(task, amount),
        )
        for item in source:
            _handle(item, publisher, counts, progress.console)
        progress.update(task, description="waiting for Kafka" if publisher else "done")
    counts["repeated"] = source.num_repeated
    _print_summary(counts, dry_run=dry_run)
    if counts["bad"] and not allow_bad:
        sys.exit(1)


_FORMATS: dict[str, Format | None] = {"auto": None, "openai-chats": "openai-chats", "otlp": "otlp"}


def _handle(
    item: Record | BadInputError, publisher: "Publisher | None", counts: Counter[str], console: Console
) -> None:
    if isinstance(item, BadInputError):
        _show_bad(item, counts, console)
        record: Record = item.dead_letter()
    else:
        _count(item, counts)
        record = item
    if publisher is not None:
        _publish(record, publisher, counts, console)


def _publish(record: Record, publisher: "Publisher", counts: Counter[str], console: Console) -> None:
    from headrace.streams.client.errors import RecordTooLargeError  # noqa: PLC0415  brings Kafka's client

    try:
        publisher.publish(record)
    except RecordTooLargeError as error:
        # Nor could dead-letters hold it. Its attempt lacks it, and so is incomplete.
        _show_bad(error, counts, console, record.key.decode(errors="replace"))


def _show_bad(error: HeadraceError, counts: Counter[str], console: Console, what: str = "") -> None:
    counts["bad"] += 1
    if counts["bad"] <= _BAD_LINES_SHOWN:
        text = f"{what}: {error}" if what else str(error)
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    elif counts["bad"] == _BAD_LINES_SHOWN + 1:
        console.print("more bad lines are not shown; dead-letters has them all", markup=False)


def _count(record: Record, counts: Counter[str]) -> None:
    if isinstance(record, AttemptEvent):
        counts["attempts"] += record.kind == "ended"
    elif isinstance(record, Span):
        counts["spans"] += 1
        counts["model calls"] += record.generation is not None
        if record.generation is not None and record.generation.why_untrainable():
            counts["untrainable calls"] += 1
    elif isinstance(record, Reward):
        counts["rewards"] += 1


@contextmanager
def _progress(files: tuple[Path, ...], console: Console) -> Iterator[Progress]:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not (files and console.is_terminal)) as progress:
        yield progress


@contextmanager
def _publisher(*, dry_run: bool) -> "Iterator[Publisher | None]":
    if dry_run:
        yield None
        return
    from headrace.streams.client.publisher import Publisher  # noqa: PLC0415  brings Kafka's client

    kafka = kafka_settings()
    existing_topics(kafka)  # says so at once where no broker answers
    with Publisher(kafka) as publisher:
        yield publisher
        publisher.flush()


def _print_summary(counts: Counter[str], *, dry_run: bool) -> None:
    table = Table(title="found (nothing published)" if dry_run else "ingested", title_justify="left")
    table.add_column("what")
    table.add_column("count", justify="right")
    for name, label in (
        ("attempts", "attempts"),
        ("spans", "spans"),
        ("model calls", "  of them model calls"),
        ("untrainable calls", "  of them untrainable (no token ids …)"),
        ("rewards", "rewards"),
        ("bad", "bad lines"),
        ("repeated", "repeated, left out"),
    ):
        table.add_row(label, str(counts[name]))
    Console().print(table)

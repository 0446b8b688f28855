"""`headrace dead-letters`: look at the records that could not be processed, and publish them again."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from headrace.cli.cells import visible
from headrace.cli.dead_letter_log import Contents, DeadLetterLog, Entry, Filter, Letter, Place
from headrace.cli.dead_letter_options import PlaceType, filters
from headrace.cli.dead_letter_replay import Replay
from headrace.cli.dead_letter_view import decoded, described, framing, hex_dump, in_words
from headrace.cli.endpoints import codec, existing_topics, kafka_settings
from headrace.cli.examples import examples
from headrace.cli.json_lines import print_json_lines
from headrace.cli.tables import Column, print_table
from headrace.cli.topic_commands import as_json, full_topic
from headrace.schemas.errors import FatalError
from headrace.schemas.records import DeadLetter
from headrace.schemas.topics import topic_name
from headrace.streams.processors.dead_letters import TOO_LARGE
from headrace.streams.settings import KafkaSettings

_FAILURES_SHOWN = 20


@click.group(
    "dead-letters",
    epilog=examples(
        "headrace dead-letters list --since 1h",
        "headrace dead-letters show spans:0:1234",
        "headrace dead-letters replay --topic spans --reason bad_record --dry-run",
    ),
)
def dead_letters() -> None:
    """List, show and replay the records that failed.

    A record that can't be processed goes to the dead-letters topic, with its bytes and the reason. These
    commands read that topic itself, from its beginning to its end.
    """


@dead_letters.command(
    "list",
    epilog=examples(
        "headrace dead-letters list",
        "headrace dead-letters list --topic spans --since 2h",
        "headrace dead-letters list --json | jq -r .reason | sort | uniq -c",
    ),
)
@filters
@click.option(
    "--limit", type=click.IntRange(min=0), default=50, show_default=True, help="The newest; 0 for all."
)
@as_json
def list_letters(*, limit: int, as_json: bool, **options: Any) -> None:  # noqa: ANN401  four options
    """List dead letters, the newest last.

    A record is listed once, whoever met it and how often.
    """
    settings = kafka_settings(quiet=True)
    contents = _read(settings)
    found = _select(contents, _filter(settings, **options))
    shown = found[-limit:] if limit else found
    if as_json:
        print_json_lines(described(letter) for letter in shown)
    else:
        _print_list(Console(), shown, len(found))
    _warn_of_unreadable(contents, settings)


@dead_letters.command(
    epilog=examples(
        "headrace dead-letters show spans:0:1234",
        "headrace dead-letters show spans:0:1234 --value",
        "headrace dead-letters show spans:0:1234 --output record.bin",
    )
)
@click.argument("place", type=PlaceType(), metavar="TOPIC:PARTITION:OFFSET")
@click.option("--value", "with_value", is_flag=True, help="Its bytes in hex, and what they decode to.")
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="Write its bytes there."
)
def show(place: Place, *, with_value: bool, output: Path | None) -> None:
    """Show a dead letter: reason, detail, key, headers.

    The value is shown with --value only: it may hold prompts.
    """
    settings = kafka_settings(quiet=True)
    place = place._replace(topic=full_topic(place.topic, settings))
    log = DeadLetterLog(settings, codec())
    letter = _read(settings, log).letters.get(place)
    if letter is None:
        raise FatalError(
            f"there is no dead letter of {place}: `headrace dead-letters list` shows what there is"
        )
    (dead,) = log.fetch([letter.first.position])
    facts = [
        ("record", str(place)),
        *(fact for entry in letter.entries for fact in _why(entry)),
        *(("replayed", f"{entry.detail} at {_utc(entry.at)}") for entry in letter.replays),
        ("record time", _utc(dead.record_time) if dead.record_time else "none"),
        ("key", in_words(dead.key_bytes)),
        *(
            ("header", f"{in_words(header.key.encode())}: {in_words(header.value)}")
            for header in dead.headers
        ),
        ("value", framing(dead.value, codec()) + ("" if with_value else "; --value shows it")),
    ]
    console = Console()
    for name, text in facts:
        console.print(Text.assemble((f"{name:12}", "bold"), text), soft_wrap=True)
    if with_value:
        for line in [*hex_dump(dead.value or b""), "", *decoded(dead, codec()).splitlines()]:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    if output is not None:
        output.write_bytes(dead.value or b"")
        click.echo(f"{len(dead.value or b''):,} bytes are in {output}", err=True)


@dead_letters.command(
    epilog=examples(
        "headrace dead-letters replay --topic spans --since 1d --dry-run",
        "headrace dead-letters replay --reason refused_by_clickhouse --yes",
        "headrace dead-letters replay spans:0:1234 spans:2:77",
        "headrace dead-letters replay --all",
    )
)
@click.argument("places", type=PlaceType(), nargs=-1, metavar="[TOPIC:PARTITION:OFFSET]...")
@filters
@click.option("--all", "everything", is_flag=True, help="All of them; without it, give places or filters.")
@click.option("--again", is_flag=True, help="Also those that were replayed before.")
@click.option("--dry-run", is_flag=True, help="Say what would be published, and publish nothing.")
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
def replay(
    places: tuple[Place, ...],
    *,
    everything: bool,
    again: bool,
    dry_run: bool,
    yes: bool,
    **options: Any,  # noqa: ANN401  four options
) -> None:
    """Publish the records again, to their topics.

    They have the same bytes, key and headers, and one header more, headrace-replay-of, that says of which
    record each is a copy. Mend the cause first: what still can't be processed comes back as another dead
    letter. Those replayed before are left out unless --again.
    """
    settings = kafka_settings(quiet=True)
    wanted = _filter(settings, **options)
    if not (places or everything) and wanted.is_empty:
        raise click.UsageError("say which: places, --topic, --reason, --consumer, --since, or --all")
    log = DeadLetterLog(settings, codec())
    contents = _read(settings, log)
    found = _select(contents, wanted, [p._replace(topic=full_topic(p.topic, settings)) for p in places])
    chosen = _replayable(found, existing_topics(settings), again=again, is_named=bool(places))
    _warn_of_unreadable(contents, settings)
    if not chosen:
        click.echo("nothing to replay")
        return
    _print_plan(chosen)
    if dry_run:
        click.echo("dry run: nothing was published")
        return
    if not yes:
        click.confirm(f"Publish {_records(len(chosen))} again?", abort=True)
    _run(Replay(settings, codec(), log), chosen)


def _run(run: Replay, chosen: Sequence[Letter]) -> None:
    try:
        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("publishing", total=len(chosen))
            for num_done in run.run(chosen):
                progress.update(task, completed=num_done)
    finally:
        # Also when an error ends it: what is done is done.
        click.echo(f"{_records(run.num_done)} replayed and acknowledged")
    for failure in run.failures[:_FAILURES_SHOWN]:
        click.echo(f"not replayed: {failure.place}: {failure.why}", err=True)
    if run.failures:
        raise FatalError(f"{_records(len(run.failures))} could not be replayed")


def _read(settings: KafkaSettings, log: DeadLetterLog | None = None) -> Contents:
    existing_topics(settings)
    log = log or DeadLetterLog(settings, codec())
    with Console(stderr=True).status(f"reading {log.topic}"):
        return log.contents()


def _filter(
    settings: KafkaSettings,
    *,
    topic: str | None,
    reason: str | None,
    consumer: str | None,
    since: datetime | None,
) -> Filter:
    return Filter(full_topic(topic, settings) if topic else None, reason, consumer, since)


def _select(contents: Contents, wanted: Filter, places: Sequence[Place] = ()) -> list[Letter]:
    """The letters meant, in the order of the log. FatalError for a place that has none."""
    missing = [str(place) for place in places if place not in contents.letters]
    if missing:
        raise FatalError(f"there is no dead letter of {', '.join(missing)}")
    letters = (
        [contents.letters[place] for place in dict.fromkeys(places)] if places else contents.letters.values()
    )
    found = [letter for letter in letters if wanted.matches(letter)]
    return sorted(found, key=lambda letter: (letter.first.at, letter.first.position))


def _replayable(
    found: Sequence[Letter], topics: frozenset[str], *, again: bool, is_named: bool
) -> list[Letter]:
    """Those that can be published and were not yet; says what is left out and why."""
    homeless = [letter for letter in found if letter.place.topic not in topics]
    cut = [letter for letter in found if letter.first.reason == TOO_LARGE]
    for letters, why in (
        (homeless, "came from no topic of this broker"),
        (cut, "too large to be kept whole"),
    ):
        if letters:
            words = f"{_records(len(letters))} {why}: {letters[0].place}"
            if is_named:
                raise FatalError(f"{words} can't be replayed")
            click.echo(f"left out: {words}{' …' if len(letters) > 1 else ''}", err=True)
    done = [letter for letter in found if letter.replays and not again]
    if done:
        click.echo(f"left out: {_records(len(done))} replayed before; --again takes them too", err=True)
    left_out = {letter.place for letter in [*homeless, *cut, *done]}
    return [letter for letter in found if letter.place not in left_out]


def _print_plan(chosen: Sequence[Letter]) -> None:
    counts: dict[tuple[str, str], list[int]] = {}
    for letter in chosen:
        counts.setdefault((letter.place.topic, letter.first.reason), []).append(letter.num_bytes)
    rows = [[topic, reason, len(sizes), sum(sizes)] for (topic, reason), sizes in sorted(counts.items())]
    columns = [
        Column("topic"),
        Column("reason"),
        Column("records", is_number=True),
        Column("bytes", is_number=True),
    ]
    print_table(Console(), columns, rows)


def _print_list(console: Console, shown: Sequence[Letter], num_found: int) -> None:
    columns = [
        Column("dead at", is_whole=True),
        Column("record", is_whole=True),
        Column("reason", is_whole=True),
        Column("met by"),
        Column("bytes", is_number=True),
        Column("replayed"),
        Column("detail"),
    ]
    rows = [
        [
            f"{letter.first.at:%Y-%m-%d %H:%M:%S}",
            str(letter.place),
            ", ".join(letter.reasons),
            ", ".join(letter.consumers),
            letter.num_bytes,
            "yes" if letter.replays else "",
            letter.first.detail,
        ]
        for letter in shown
    ]
    if rows:
        print_table(console, columns, rows)
    words = f"{num_found:,} dead letter{'s' * (num_found != 1)}"
    if len(shown) < num_found:
        words += f", the newest {len(shown):,} shown; --limit 0 shows all"
    console.print(Text(words + (", times in UTC" if rows else ""), style="dim"))


def _warn_of_unreadable(contents: Contents, settings: KafkaSettings) -> None:
    if contents.unreadable:
        position, why = contents.unreadable[0]
        first = Place(topic_name(DeadLetter, settings.topic_prefix), *position)
        count = _records(len(contents.unreadable))
        click.echo(f"{count} there can't be read, the first at {first}: {why}", err=True)


def _why(entry: Entry) -> list[tuple[str, str]]:
    met = f"{entry.reason}, met by {entry.consumer} at {_utc(entry.at)}"
    return [("reason", met), ("detail", visible(entry.detail) or "none")]


def _records(count: int) -> str:
    return f"{count:,} record{'s' * (count != 1)}"


def _utc(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f} UTC"

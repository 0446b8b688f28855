"""`headrace lag`: how many records the processors have still to commit."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import click
from confluent_kafka import KafkaException
from rich.console import Console
from rich.text import Text

from headrace.cli.endpoints import existing_topics, kafka_settings
from headrace.cli.examples import examples
from headrace.cli.json_lines import print_json_lines
from headrace.cli.tables import Column, print_table
from headrace.schemas.errors import FatalError
from headrace.streams.client.admin import group_lag
from headrace.streams.settings import KafkaSettings
from headrace.streams.topology import PIPELINE


class Lag(NamedTuple):
    group: str
    topic: str
    partition: int
    lag: int


@click.command(epilog=examples("headrace lag", "headrace lag --json | jq -s 'map(.lag) | add'"))
@click.option("--json", "as_json", is_flag=True, help="One object a line, for programs: every partition.")
def lag(*, as_json: bool) -> None:
    """Show how many records the processors are behind.

    Counted are records that a group has not committed yet; it commits when its work on them is done and
    kept. A topic without lag is one line. The exit status is 0 whatever the lag.
    """
    settings = kafka_settings(quiet=True)
    existing_topics(settings)
    try:
        lags = read_lags(settings)
    except KafkaException as error:
        raise FatalError(f"Kafka at {settings.bootstrap_servers} refuses: {error.args[0].str()}") from error
    if as_json:
        print_json_lines(item._asdict() for item in lags)
        return
    console = Console()
    if not lags:
        console.print("no topics yet: `headrace topics apply` creates them")
        return
    columns = [
        Column("group", is_whole=True),
        Column("topic", is_whole=True),
        Column("partition", is_number=True),
        Column("lag", is_number=True),
    ]
    print_table(console, columns, list(summarized(lags)))
    totals = {group: 0 for group, *_ in lags}
    for item in lags:
        totals[item.group] += item.lag
    words = ", ".join(f"{group} is {total:,} behind" for group, total in totals.items())
    console.print(Text(words, style="dim"))


def read_lags(settings: KafkaSettings) -> list[Lag]:
    """Every partition of every topic that each stage of the pipeline reads."""
    lags = []
    for stage in PIPELINE:
        group = stage.group(settings.topic_prefix)
        for (topic, partition), behind in sorted(
            group_lag(settings, group, stage.topics(settings.topic_prefix)).items()
        ):
            lags.append(Lag(group, topic, partition, behind))
    return lags


def summarized(lags: Iterable[Lag]) -> Iterator[list[object]]:
    """Rows for the table: a topic without lag is one row, else each of its partitions that has some."""
    by_topic: dict[tuple[str, str], list[Lag]] = {}
    for item in lags:
        by_topic.setdefault((item.group, item.topic), []).append(item)
    for (group, topic), items in by_topic.items():
        behind = [item for item in items if item.lag]
        for item in behind:
            yield [group, topic, item.partition, Text(f"{item.lag:,}", style="yellow")]
        if not behind:
            yield [group, topic, Text(f"all {len(items)}", style="dim"), Text("0", style="dim")]

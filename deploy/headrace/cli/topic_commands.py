"""`headrace topics`: the declared topics, made true and checked."""

import time
from collections.abc import Iterable

import click
from confluent_kafka import KafkaException
from rich.console import Console
from rich.text import Text

from headrace.cli.endpoints import existing_topics, kafka_settings
from headrace.cli.examples import examples
from headrace.cli.json_lines import print_json_lines
from headrace.cli.tables import Column, print_table
from headrace.schemas.errors import FatalError
from headrace.schemas.topics import topic_specs
from headrace.streams.client.admin import TopicStatus, apply_topics, describe_topics, end_offsets
from headrace.streams.settings import KafkaSettings

READY_S = 30.0
_POLL_S = 0.05

as_json = click.option("--json", "as_json", is_flag=True, help="One object a line, for programs.")


@click.group(
    epilog=examples("headrace topics apply", "headrace topics list", "headrace topics describe spans")
)
def topics() -> None:
    """Create, check and describe the Kafka topics.

    Each topic is declared in a file of headrace's: who writes and reads it, its key, record and settings.
    """


@topics.command(
    epilog=examples("headrace topics apply", "HEADRACE_KAFKA_TOPIC_PREFIX=staging headrace topics apply")
)
@as_json
def apply(*, as_json: bool) -> None:
    """Create the topics that are missing, and set what differs.

    The number of partitions is checked, never changed: keys would move away from their history. Where it
    differs nothing is changed, and the exit status is 1.
    """
    settings = _reachable()
    try:
        applied = apply_topics(settings)
        _wait_for_leaders(settings, [item.name for item in applied])
    except KafkaException as error:
        raise FatalError(f"Kafka at {settings.bootstrap_servers} refuses: {error.args[0].str()}") from error
    if as_json:
        print_json_lines(item._asdict() for item in applied)
        return
    rows = [
        [item.name, _dim_if(item.action, dim=item.action == "unchanged"), item.detail] for item in applied
    ]
    print_table(Console(), [Column("topic", is_whole=True), Column("was"), Column("detail")], rows)


@topics.command("list", epilog=examples("headrace topics list", "headrace topics list --json | jq .name"))
@as_json
def list_topics(*, as_json: bool) -> None:
    """List the topics, and whether the broker has them as declared."""
    statuses = _statuses(_reachable())
    if as_json:
        print_json_lines(_summary(status) for status in statuses)
        return
    columns = [
        Column("topic", is_whole=True),
        Column("state", is_whole=True),
        Column("record"),
        Column("key"),
        Column("partitions", is_number=True),
        Column("replicas", is_number=True),
    ]
    rows = [
        [
            status.name,
            _state_text(status),
            status.spec.record,
            status.spec.key,
            status.partitions if status.exists else "",
            status.replication_factor if status.exists else "",
        ]
        for status in statuses
    ]
    print_table(Console(), columns, rows)


@topics.command(
    epilog=examples("headrace topics describe spans", "headrace topics describe headrace.spans.v1 --json")
)
@click.argument("name", required=False)
@as_json
def describe(name: str | None, *, as_json: bool) -> None:
    """Describe a topic, or all: what is declared, and what the broker says where it differs.

    NAME may be short (spans) or full (headrace.spans.v1).
    """
    settings = kafka_settings(quiet=True)
    known = {spec.full_name(settings.topic_prefix): spec for spec in topic_specs().values()}
    wanted = full_topic(name, settings) if name else None
    if wanted is not None and wanted not in known:
        raise FatalError(f"no topic {name!r} is declared; there are {', '.join(topic_specs())}")
    _reachable()
    statuses = [status for status in _statuses(settings) if wanted in {None, status.name}]
    if as_json:
        print_json_lines(_summary(status) | {"declared": status.spec.model_dump()} for status in statuses)
        return
    console = Console()
    for status in statuses:
        _print_description(console, status)


def full_topic(name: str, settings: KafkaSettings) -> str:
    """The full name of a declared topic given by its short one; any other name as it is."""
    spec = topic_specs().get(name)
    return spec.full_name(settings.topic_prefix) if spec else name


def _print_description(console: Console, status: TopicStatus) -> None:
    spec = status.spec
    console.print(Text.assemble((status.name, "bold"), "  ", _state_text(status)))
    console.print(Text(f"  {spec.description}"), soft_wrap=True)
    replicas = f", {status.replication_factor} replicas" if status.exists else ""
    partitions = f"{status.partitions if status.exists else spec.partitions}{replicas}"
    if spec.copartitioned:
        partitions += ", the same for all topics keyed by rollout"
    facts = {
        "record": f"{spec.record}, keyed by {spec.key}, {spec.compatibility}",
        "owner": spec.owner,
        "written by": ", ".join(spec.producers),
        "read by": ", ".join(spec.consumers),
        "partitions": partitions,
    }
    facts |= {key: str(value) for key, value in spec.config.items()}
    for key, value in facts.items():
        line = Text.assemble("  ", (f"{key:22}", "dim"), value)
        if key in status.differences:
            wanted, found = status.differences[key]
            line.append(f"  the broker has {found}, {wanted} is declared", style="yellow")
        console.print(line, soft_wrap=True)
    console.print()


def _reachable() -> KafkaSettings:
    settings = kafka_settings(quiet=True)
    existing_topics(settings)
    return settings


def _wait_for_leaders(settings: KafkaSettings, names: Iterable[str]) -> None:
    """Until the topics can be used: a broker says that it created one before it knows it itself."""
    deadline_s = time.monotonic() + READY_S
    while True:
        try:
            end_offsets(settings, names)
        except (KafkaException, KeyError):
            if time.monotonic() > deadline_s:
                raise
            time.sleep(_POLL_S)
        else:
            return


def _statuses(settings: KafkaSettings) -> Iterable[TopicStatus]:
    try:
        return describe_topics(settings)
    except KafkaException as error:
        raise FatalError(f"Kafka at {settings.bootstrap_servers} refuses: {error.args[0].str()}") from error


def _state(status: TopicStatus) -> str:
    if not status.exists:
        return "missing"
    return "differs" if status.differences else "ok"


def _state_text(status: TopicStatus) -> Text:
    state = _state(status)
    return Text(state, style={"ok": "green", "differs": "yellow", "missing": "red"}[state])


def _dim_if(text: str, *, dim: bool) -> Text:
    return Text(text, style="dim" if dim else "")


def _summary(status: TopicStatus) -> dict[str, object]:
    return {
        "name": status.name,
        "state": _state(status),
        "record": status.spec.record,
        "key": status.spec.key,
        "partitions": status.partitions if status.exists else None,
        "replication_factor": status.replication_factor if status.exists else None,
        "differences": {
            key: {"declared": wanted, "found": found} for key, (wanted, found) in status.differences.items()
        },
    }

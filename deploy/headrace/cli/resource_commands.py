"""`headrace resources`: publish and look at versions of weights, prompts, sampling settings and endpoints."""

from collections.abc import Sequence
from datetime import UTC
from pathlib import Path
from typing import IO, get_args

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.text import Text

from headrace.cli.cells import visible
from headrace.cli.endpoints import codec, existing_topics, kafka_settings
from headrace.cli.examples import examples
from headrace.cli.json_lines import print_json_lines
from headrace.cli.rollout_options import PairType
from headrace.cli.tables import Column, print_table
from headrace.cli.topic_commands import as_json
from headrace.schemas.records import ResourceVersion
from headrace.streams.client.manifest import files_of
from headrace.streams.client.publisher import Publisher
from headrace.streams.client.resource_publishing import ResourceKind, publish_resource
from headrace.streams.client.resource_versions import ResourceVersions
from headrace.streams.client.resources import read_resources
from headrace.streams.settings import KafkaSettings

_FILES_SHOWN = 20


@click.group(
    epilog=examples(
        "headrace resources publish policy --kind weights --files checkpoints/12",
        "headrace resources publish system-prompt --kind prompt --content 'You are terse.'",
        "headrace resources list",
        "headrace resources show policy@3",
    )
)
def resources() -> None:
    """Publish and look at versions of weights, prompts, sampling settings and endpoints.

    Versions of a name only go up. Rollouts are given the newest, or the ones that they are pinned to.
    """


@resources.command(
    epilog=examples(
        "headrace resources publish policy --kind weights --files checkpoints/12 --metadata step=1200",
        "headrace resources publish policy --kind weights --files step-12 --uri s3://models/policy/12",
        "headrace resources publish system-prompt --kind prompt --content-file prompt.txt",
        "headrace resources publish llm --kind endpoint --uri http://10.0.0.7:8000/v1",
    )
)
@click.argument("name")
@click.option("--kind", type=click.Choice(get_args(ResourceKind)), required=True)
@click.option("--uri", default="", help="Where it is; by default where --files lie.")
@click.option("--content", help="A small resource itself.")
@click.option(
    "--content-file",
    type=click.File(encoding="utf-8"),
    help="The same out of a file; - for the standard input.",
)
@click.option(
    "--files",
    type=click.Path(exists=True, path_type=Path),
    help="A folder or a file: all of it is read, and its sha256 sums published.",
)
@click.option("--metadata", type=PairType(), multiple=True, metavar="NAME=VALUE", help="May be given again.")
@click.option("--parent", type=click.IntRange(min=0), help="The version that it comes from.")
@click.option("--version", type=click.IntRange(min=0), help="Its number; by default the next.")
@as_json
def publish(
    name: str,
    *,
    kind: ResourceKind,
    uri: str,
    content: str | None,
    content_file: IO[str] | None,
    files: Path | None,
    metadata: Sequence[tuple[str, str]],
    parent: int | None,
    version: int | None,
    as_json: bool,
) -> None:
    """Publish the next version of NAME, once all of it is read and checksummed.

    Of two who publish at once, each gets a number of its own.
    """
    if content is not None and content_file is not None:
        raise click.UsageError("give --content or --content-file, not both")
    settings = _reachable()
    total = sum(seen.num_bytes for seen in files_of(files).values()) if files else 0
    with Publisher(settings, codec=codec()) as publisher, _progress(total) as progress:
        bar = progress.add_task("reading", total=total)
        record = publish_resource(
            publisher,
            name,
            kind,
            uri=uri,
            content=content_file.read() if content_file else content,
            files=files,
            metadata=dict(metadata),
            parent_version=parent,
            version=version,
            on_bytes=lambda num_bytes: progress.advance(bar, num_bytes),
        )
    if as_json:
        print_json_lines([_summary(record) | {"manifest": record.manifest}])
    else:
        click.echo(f"{record.name}@{record.version} is published{_of_files(record)}")


@resources.command(
    "list",
    epilog=examples(
        "headrace resources list",
        "headrace resources list --all --kind weights",
        "headrace resources list --json | jq -r .uri",
    ),
)
@click.option("--all", "everything", is_flag=True, help="Every version, not only the newest.")
@click.option("--kind", type=click.Choice(get_args(ResourceKind)))
@as_json
def list_resources(*, everything: bool, kind: str | None, as_json: bool) -> None:
    """List resources by name, with their newest version."""
    versions = _read(_reachable())
    found = [
        versions.pinned(name, number)
        for name in versions.names()
        for number in (versions.versions_of(name) if everything else [versions.newest_version(name)])
    ]
    shown = [record for record in found if kind in {None, record.kind}]
    if as_json:
        print_json_lines(map(_summary, shown))
        return
    columns = [
        Column("name", is_whole=True),
        Column("version", is_number=True),
        Column("kind", is_whole=True),
        Column("published at", is_whole=True),
        Column("files", is_number=True),
        Column("where"),
    ]
    rows = [
        [
            record.name,
            record.version,
            record.kind,
            f"{record.time:%Y-%m-%d %H:%M:%S}",
            len(record.manifest) or "",
            record.uri or _content_size(record),
        ]
        for record in shown
    ]
    console = Console()
    if rows:
        print_table(console, columns, rows)
    words = f"{len(rows):,} version{'s' * (len(rows) != 1)}{', times in UTC' if rows else ''}"
    console.print(Text(words, style="dim"))


@resources.command(
    epilog=examples("headrace resources show policy", "headrace resources show system-prompt@3 --content")
)
@click.argument("resource", metavar="NAME[@VERSION]")
@click.option("--content", "with_content", is_flag=True, help="Its content too, and nothing else.")
@as_json
def show(resource: str, *, with_content: bool, as_json: bool) -> None:
    """Show a version, the newest if none is said: where it is, its files, what it was trained on.

    The content is shown with --content only: it may be a prompt.
    """
    name, version = _parse(resource)
    versions = _read(_reachable())
    record = versions.pinned(name, versions.versions_of(name)[-1] if version is None else version)
    if as_json:
        left_out = set() if with_content else {"content"}
        print_json_lines([record.model_dump(mode="json", exclude=left_out)])
    elif with_content:
        click.echo(record.content or "", nl=False)
    else:
        _print_facts(Console(), record, versions)


def _print_facts(console: Console, record: ResourceVersion, versions: ResourceVersions) -> None:
    numbers = versions.versions_of(record.name)
    facts = [
        ("resource", f"{record.name}@{record.version}, of {len(numbers)} to {numbers[-1]}"),
        ("kind", record.kind),
        ("published", f"{record.time.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f} UTC"),
        ("uri", record.uri or "none"),
        ("content", f"{_content_size(record)}; --content shows it" if record.content is not None else "none"),
    ]
    if record.parent_version is not None:
        facts.append(("parent", str(record.parent_version)))
    facts += [("metadata", f"{name}={value}") for name, value in sorted(record.metadata.items())]
    facts += [
        ("consumed", f"{place} to {offset}") for place, offset in sorted(record.consumed_offsets.items())
    ]
    if record.trained_on:
        facts.append(("trained on", f"{len(record.trained_on):,} batches, the last {record.trained_on[-1]}"))
    files = list(record.manifest.items())
    facts += [("file", f"{sha256}  {name}") for name, sha256 in files[:_FILES_SHOWN]]
    if len(files) > _FILES_SHOWN:
        facts.append(("", f"and {len(files) - _FILES_SHOWN:,} more: --json has them all"))
    for name, text in facts:
        console.print(Text.assemble((f"{name:12}", "bold"), visible(text)), soft_wrap=True)


def _parse(resource: str) -> tuple[str, int | None]:
    """A name may hold an @; what follows the last one is a version if it is a number."""
    name, _, version = resource.rpartition("@")
    if name and version.isascii() and version.isdigit():
        return name, int(version)
    return resource, None


def _summary(record: ResourceVersion) -> dict[str, object]:
    return record.model_dump(mode="json", exclude={"content", "manifest"}) | {
        "num_files": len(record.manifest),
        "content_bytes": None if record.content is None else len(record.content.encode()),
    }


def _content_size(record: ResourceVersion) -> str:
    return "" if record.content is None else f"{len(record.content.encode()):,} bytes of content"


def _of_files(record: ResourceVersion) -> str:
    count = len(record.manifest)
    return f", {count:,} file{'s' * (count != 1)} checksummed" if count else ""


def _progress(total: int) -> Progress:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, console=console, transient=True, disable=not (total and console.is_terminal))


def _read(settings: KafkaSettings) -> ResourceVersions:
    with Console(stderr=True).status("reading the resources"):
        return read_resources(settings, codec())


def _reachable() -> KafkaSettings:
    settings = kafka_settings(quiet=True)
    existing_topics(settings)
    return settings

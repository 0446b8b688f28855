"""`headrace schemas`: list the schemas, lock their ids, and check that versions read each other."""

import click
from rich.console import Console
from rich.table import Table

from headrace.schemas.compatibility import incompatibilities
from headrace.schemas.errors import FatalError
from headrace.schemas.records import RECORDS
from headrace.schemas.topics import topic_of
from headrace.schemas.versions import changed_since_lock, lock_all, newest, read_lock, versions


@click.group()
def schemas() -> None:
    """Avro schemas of the records on the topics."""


@schemas.command("list")
def list_schemas() -> None:
    """Show each record's versions, the id of the newest on the wire, and its topic."""
    lock = read_lock()
    table = Table("record", "versions", "id", "topic")
    for name, record in sorted(RECORDS.items()):
        numbers = ", ".join(str(version.version) for version in versions(name))
        entry = lock.get(name, {}).get(str(newest(name).version))
        table.add_row(name, numbers, str(entry["id"]) if entry else "not locked", topic_of(record).name)
    Console().print(table)


@schemas.command()
def lock() -> None:
    """Give an id to each version that has none. A locked version never changes."""
    new = lock_all()
    for name in new:
        click.echo(f"locked {name}")
    if not new:
        click.echo("every version is locked already")


@schemas.command()
def check() -> None:
    """Fail if a locked version changed, or if versions of a record can't read each other."""
    problems = changed_since_lock()
    for record in sorted(RECORDS):
        problems += incompatibilities(record)
    if problems:
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise FatalError(f"{len(problems)} problem{'s' * (len(problems) > 1)} with the schemas:\n{lines}")
    count = sum(len(versions(record)) for record in RECORDS)
    click.echo(f"schemas ok records={len(RECORDS)} versions={count}")

"""`headrace up`, `down`, `status` and `fetch-kafka`."""

import sys
from pathlib import Path

import click
import orjson
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from headrace.cli.stack import background
from headrace.cli.stack.kafka_jars import fetch
from headrace.cli.stack.plan import PROCESSORS, make_plan
from headrace.cli.stack.settings import StackSettings
from headrace.cli.stack.state import Condition, Phase, StackState, load
from headrace.cli.stack.supervisor import Supervisor


@click.command()
@click.option("--detach", "-d", is_flag=True, help="Run in the background; return when it is ready.")
@click.option("--no-processors", is_flag=True, help="Kafka and ClickHouse only.")
def up(*, detach: bool, no_processors: bool) -> None:
    """Start the local stack: Kafka, ClickHouse, and the processors.

    It runs in the foreground until Ctrl-C. Data, logs and state are kept in $HEADRACE_HOME (./.headrace).
    Where HEADRACE_KAFKA_BOOTSTRAP_SERVERS or HEADRACE_CLICKHOUSE_HOST is set, no such server is started.
    """
    settings = StackSettings()
    console = Console()
    if detach:
        arguments = ["--no-processors"] if no_processors else []
        background.start(settings.home.resolve(), arguments, console=console)
        return

    def report(line: str) -> None:
        console.print(f"kafka: {line}", markup=False, highlight=False, soft_wrap=True)

    processors = () if no_processors else PROCESSORS
    Supervisor(settings.home, console=console).run(
        lambda previous: make_plan(settings, previous, report=report, processors=processors)
    )


@click.command()
def down() -> None:
    """Stop the local stack. Its data stays."""
    background.stop(StackSettings().home.resolve(), console=Console())


@click.command()
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def status(*, as_json: bool) -> None:
    """Show the local stack; the exit status is 0 only if all of it runs."""
    home = StackSettings().home.resolve()
    state = load(home)
    if as_json:
        sys.stdout.write(orjson.dumps(_describe(home, state), option=orjson.OPT_INDENT_2).decode() + "\n")
    elif state is None:
        click.echo(f"nothing runs in {home}")
    else:
        _print_table(home, state)
    sys.exit(0 if state is not None and _all_runs(state) else 1)


@click.command("fetch-kafka")
def fetch_kafka() -> None:
    """Fetch Kafka's jars by Maven, unless they are there."""
    settings = StackSettings()
    console = Console()
    with console.status("Maven fetches Kafka's jars") as progress:

        def report(line: str) -> None:
            progress.update(f"Maven fetches Kafka's jars: {line}")
            if not console.is_terminal:
                click.echo(line)

        folder = fetch(settings.cache, report=report, java_home=settings.java_home)
    click.echo(f"Kafka's jars are in {folder}")


def _all_runs(state: StackState) -> bool:
    fine = {Condition.RUNNING, Condition.EXTERNAL}
    return state.alive and state.phase is Phase.READY and all(s.actual in fine for s in state.services)


def _phase(state: StackState | None) -> str:
    """The phase; what a supervisor that is gone once said does not count."""
    return str(state.phase) if state and (state.alive or state.phase is Phase.FAILED) else str(Phase.STOPPED)


def _describe(home: Path, state: StackState | None) -> dict[str, object]:
    return {
        "home": str(home),
        "phase": _phase(state),
        "pid": state.supervisor.pid if state and state.alive else None,
        "error": state.error if state else "",
        "endpoints": state.endpoints.model_dump() if state and state.alive and state.endpoints else None,
        "services": [
            {
                "name": service.name,
                "state": str(service.actual),
                "pid": service.process.pid if service.process and service.process.alive() else None,
                "endpoint": service.endpoint,
                "restarts": service.num_restarts,
                "data_bytes": service.data_bytes(),
                "log": str(service.log_path or ""),
            }
            for service in (state.services if state else ())
        ],
    }


def _print_table(home: Path, state: StackState) -> None:
    console = Console()
    pid = f" (pid {state.supervisor.pid})" if state.alive else ""
    console.print(f"{home}: {_phase(state)}{pid}", markup=False, highlight=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("service", "state", "pid", "endpoint", "restarts", "data"):
        table.add_column(heading, no_wrap=True)
    table.add_column("log", overflow="fold")
    for service in state.services:
        log = service.log_path
        table.add_row(
            service.name,
            str(service.actual),
            str(service.process.pid) if service.process and service.process.alive() else "",
            service.endpoint,
            str(service.num_restarts),
            decimal(service.data_bytes()) if service.data_path else "",
            str(log.relative_to(home) if log and log.is_relative_to(home) else log or ""),
        )
    console.print(table)
    if state.error:
        console.print(state.error, markup=False, highlight=False)

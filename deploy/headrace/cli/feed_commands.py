"""`headrace feed`: tasks for a trainer, as fast as it takes them."""

import signal
import sys
import threading
from pathlib import Path
from typing import IO, Any

import click
from pydantic import ValidationError

from headrace.cli import logs
from headrace.cli.endpoints import codec, existing_topics, kafka_settings, read_settings
from headrace.cli.examples import examples
from headrace.cli.feed_view import FeedView, summarized
from headrace.cli.rollout_options import config_of, config_options
from headrace.cli.stack.settings import StackSettings
from headrace.cli.task_lines import read_tasks, task_ids
from headrace.schemas.codec import describe
from headrace.schemas.errors import FatalError
from headrace.streams.client.feeder import Feeder, FeederSettings, FeedObserver
from headrace.streams.client.rollouts import Client

_CONFIG = (
    "timeout_s",
    "heartbeat_timeout_s",
    "max_attempts",
    "retry_on",
    "reward_grace_s",
    "accept",
    "credit_rule",
    "agents",
)
_COUNT = click.IntRange(min=1)


@click.command(
    epilog=examples(
        "headrace feed tasks.jsonl --group-size 8 --epochs 3",
        "headrace feed tasks.jsonl --val val.jsonl --val-every 5 --max-staleness 2 --groups-per-version 16",
        "headrace feed tasks.jsonl --run boxes-2 --metrics-port 9300",
    )
)
@click.argument("tasks", type=click.File("rb"), metavar="TASKS.jsonl")
@click.option("--run", metavar="NAME", help="Of the run.  [default: the file's]")
@click.option("--group-size", type=_COUNT, help="Rollouts of each task in one group.  [default: 8]")
@click.option("--epochs", type=_COUNT, help="How often each task comes.  [default: 1]")
@click.option("--seed", type=int, help="Of the order of tasks.  [default: 0]")
@click.option("--shuffle/--no-shuffle", default=None, help="Another order in each epoch.  [default: shuffle]")
@click.option("--max-in-flight-groups", type=_COUNT, help="Groups without a verdict.  [default: 64]")
@click.option(
    "--max-staleness",
    type=click.IntRange(min=0),
    help="Versions that a group may be behind when it is trained; goes with --groups-per-version.",
)
@click.option("--groups-per-version", type=_COUNT, help="Groups that a version is trained on.")
@click.option("--resource", metavar="NAME", help="The weights that are trained.  [default: policy]")
@click.option(
    "--val", "val_tasks", type=click.File("rb"), metavar="VAL.jsonl", help="Tasks that never train."
)
@click.option("--val-every", type=_COUNT, help="Versions from one round of them to the next.")
@click.option("--val-samples", type=_COUNT, help="Rollouts of each of them.  [default: 1]")
@click.option(
    "--val-pinned/--val-newest",
    default=None,
    help="Ask for the round's version; the proxy always serves the newest weights.  [default: pinned]",
)
@click.option("--val-at-start", is_flag=True, default=None, help="A round before any training.")
@click.option("--task-id", "task_id_field", metavar="FIELD", help="The tasks' field that names them.")
@config_options
@click.option(
    "--state",
    "state_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="What the run must remember.  [default: feeds/NAME.json in $HEADRACE_HOME]",
)
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="Serve Prometheus metrics on loopback.")
def feed(
    tasks: IO[bytes],
    *,
    val_tasks: IO[bytes] | None,
    task_id_field: str | None,
    state_path: Path | None,
    metrics_port: int | None,
    **options: Any,  # noqa: ANN401  the settings' and the config's
) -> None:
    """Feed each line of TASKS.jsonl, one JSON value, to the runners as a group of rollouts.

    Groups follow as earlier ones get their verdicts from the batcher, and with --max-staleness as versions
    are trained on them. Every few versions the tasks of --val run, never train, and have a report of their
    own.

    Ends when every group has its verdict. After Ctrl-C, SIGTERM or a crash the same command goes on where it
    was, and nothing runs twice.
    """
    chosen = {name: options.pop(name) for name in list(options) if name not in _CONFIG}
    settings = _settings(chosen, tasks.name)
    found, validation = read_tasks(tasks), read_tasks(val_tasks) if val_tasks else []
    if not found:
        raise FatalError(f"{tasks.name} has no tasks")
    if bool(validation) != bool(settings.val_every or settings.val_at_start):
        raise click.UsageError("--val goes with --val-every or --val-at-start.")
    kafka = kafka_settings(quiet=True)
    existing_topics(kafka)
    logs.configure()
    with Client(kafka, codec=codec()) as client, FeedView(_observers(metrics_port)) as view:
        feeder = Feeder(
            client,
            found,
            settings,
            val_tasks=validation,
            task_ids=task_ids(found, task_id_field) if task_id_field else None,
            val_task_ids=task_ids(validation, task_id_field) if task_id_field else None,
            config=config_of({name: options[name] for name in _CONFIG}),
            state_path=state_path or StackSettings().home / "feeds" / f"{settings.run}.json",
            observer=view,
        )
        progress = feeder.run(_stopped_by_signals())
    click.echo(summarized(progress), err=True)
    sys.exit(0 if progress.is_over else 1)


def _settings(chosen: dict[str, Any], file: str) -> FeederSettings:
    """From options, else from the environment."""
    given = {name: value for name, value in chosen.items() if value is not None}
    base = read_settings(FeederSettings)
    if "run" not in base.model_fields_set:
        given.setdefault("run", Path(file).stem if file not in {"-", "<stdin>"} else "run")
    try:
        return FeederSettings.model_validate(base.model_dump(exclude_unset=True) | given)
    except ValidationError as error:
        raise FatalError(describe(error)) from None


def _stopped_by_signals() -> threading.Event:
    """Set by the first SIGINT or SIGTERM; a second one ends the process at once."""
    stop = threading.Event()

    def handle(number: int, _: object) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
    return stop


def _observers(metrics_port: int | None) -> list[FeedObserver]:
    if metrics_port is None:
        return []
    from prometheus_client import start_http_server  # noqa: PLC0415  an extra

    from headrace.streams.client.feed_prometheus import FeedMetrics  # noqa: PLC0415

    metrics = FeedMetrics()
    start_http_server(metrics_port, addr="127.0.0.1")
    return [metrics]

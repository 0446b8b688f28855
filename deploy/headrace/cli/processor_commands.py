"""`headrace dispatcher`, `assembler`, `batcher` and `sink`: the processors, each as a process of its own."""

import sys

import click

from headrace.cli import logs
from headrace.cli.endpoints import clickhouse_settings, codec, kafka_settings, read_settings


@click.command()
def dispatcher() -> None:
    """Run the dispatcher: rollouts to runners, with retries, deadlines and cancellation.

    Until SIGTERM or Ctrl-C. Settings come from HEADRACE_KAFKA_*, HEADRACE_DISPATCHER_* and HEADRACE_HOST_*.
    Start more of them to share the partitions.
    """
    from headrace.streams.host import HostSettings, run  # noqa: PLC0415  Faust
    from headrace.streams.processors.dispatcher import Dispatcher, DispatcherSettings  # noqa: PLC0415

    logs.configure()
    kafka = kafka_settings()
    settings = read_settings(DispatcherSettings)
    sys.exit(run(Dispatcher(kafka.topic_prefix, settings, codec()), kafka, read_settings(HostSettings)))


@click.command()
def assembler() -> None:
    """Run the assembler: events of attempts into trajectories.

    Until SIGTERM or Ctrl-C, when what is in hand is finished and committed. Settings come from
    HEADRACE_KAFKA_*, HEADRACE_ASSEMBLER_* (grace times) and HEADRACE_HOST_* (batches, state, metrics).
    Start more of them to share the partitions.
    """
    from headrace.streams.host import HostSettings, run  # noqa: PLC0415  Faust
    from headrace.streams.processors.assembler import Assembler, AssemblerSettings  # noqa: PLC0415

    logs.configure()
    kafka = kafka_settings()
    settings = read_settings(AssemblerSettings)
    sys.exit(run(Assembler(kafka.topic_prefix, settings, codec()), kafka, read_settings(HostSettings)))


@click.command()
def batcher() -> None:
    """Run the batcher: the trajectories of groups into training batches.

    Until SIGTERM or Ctrl-C. Settings come from HEADRACE_KAFKA_*, HEADRACE_BATCHER_* (deadlines, which groups
    may train, sizes) and HEADRACE_HOST_*. A batch is made within a partition of trajectories: there is one,
    unless its topic was given more, and a second process takes over when the first ends.
    """
    from headrace.streams.host import HostSettings, run  # noqa: PLC0415  Faust
    from headrace.streams.processors.batcher.batcher import Batcher  # noqa: PLC0415
    from headrace.streams.processors.batcher.settings import BatcherSettings  # noqa: PLC0415

    logs.configure()
    kafka = kafka_settings()
    settings = read_settings(BatcherSettings)
    sys.exit(run(Batcher(kafka.topic_prefix, settings, codec()), kafka, read_settings(HostSettings)))


@click.command()
def sink() -> None:
    """Run the sink: every topic into ClickHouse.

    Until SIGTERM or Ctrl-C. Settings come from HEADRACE_KAFKA_*, HEADRACE_CLICKHOUSE_* and
    HEADRACE_SINK_* (batches, metrics). Start more of them to share the partitions.
    """
    from headrace.streams.processors.sink.run import run  # noqa: PLC0415  an extra
    from headrace.streams.processors.sink.settings import SinkSettings  # noqa: PLC0415

    logs.configure()
    run(kafka_settings(), clickhouse_settings(), read_settings(SinkSettings), codec())

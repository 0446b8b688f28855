"""`headrace runner`: runs an agent on the tasks that the dispatcher hands out."""

import os
import shlex
import sys
from pathlib import Path

import click

from headrace.cli import logs
from headrace.cli.endpoints import codec, kafka_settings, read_settings
from headrace.cli.examples import examples

_EPILOG = examples(
    "headrace runner my_agents:solve --concurrency 64",
    "headrace runner --exec './agent.sh' --base-url http://127.0.0.1:8000/v1",
    "headrace runner my_agents:solve --proxy http://127.0.0.1:8500",
    "headrace runner --exec 'node agent.js' --drain-timeout 600",
)
_SETTINGS = {"drain_timeout": "drain_timeout_s", "proxy": "proxy_url"}
"""Of options, where the names differ."""


@click.command(epilog=_EPILOG)
@click.argument("agent", metavar="[MODULE:AGENT]", required=False)
@click.option(
    "--exec", "command", metavar="COMMAND", help="Run this for each attempt, instead of a function."
)
@click.option("--concurrency", type=click.IntRange(min=1), help="Attempts at a time.  [default: 16]")
@click.option(
    "--drain-timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="How long running attempts may go on after SIGTERM.  [default: 30]",
)
@click.option(
    "--base-url",
    metavar="URL",
    help="Of an OpenAI-compatible API; {attempt_id} is filled in.  [default: an endpoint resource]",
)
@click.option(
    "--proxy",
    metavar="URL",
    help="Of the proxy, for the agent's model calls; its key is in HEADRACE_RUNNER_PROXY_KEY.",
)
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="Serve Prometheus metrics on loopback.")
@click.option(
    "--app-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    help="Where MODULE is looked for first.  [default: here]",
)
def runner(agent: str | None, command: str | None, app_dir: Path, **options: object) -> None:
    """Run an agent, many attempts at a time.

    MODULE:AGENT is a function, plain or async, of a task (parsed JSON) and resources by name; it may return
    the reward. With --exec it is a program in any language: the task is on its standard input and in
    $HEADRACE_TASK_FILE, its last line may be the reward, or it posts rewards and traces to
    $HEADRACE_ATTEMPT_URL.

    Runs until SIGTERM or Ctrl-C: running attempts are finished within --drain-timeout, the rest is ended
    and tried again elsewhere; a second signal ends at once. Settings come from HEADRACE_KAFKA_* and
    HEADRACE_RUNNER_*. Start more of them to share the tasks.
    """
    from headrace.streams.runner.agent import Agent, load_agent  # noqa: PLC0415  Kafka's client, half a second
    from headrace.streams.runner.run import Command, run  # noqa: PLC0415
    from headrace.streams.runner.settings import RunnerSettings  # noqa: PLC0415

    if (agent is None) == (command is None):
        raise click.UsageError("Either MODULE:AGENT or --exec COMMAND is expected.")
    given = {_SETTINGS.get(name, name): value for name, value in options.items() if value is not None}
    settings = read_settings(RunnerSettings).model_copy(update=given)
    if settings.base_url is not None and settings.proxy_url is not None:
        raise click.UsageError(
            "--base-url and --proxy exclude each other, HEADRACE_RUNNER_BASE_URL and _PROXY_URL as well."
        )
    what: Agent | Command
    if command is not None:
        what = Command(_split(command), dict(os.environ))
    else:
        assert agent is not None  # noqa: S101  checked above
        sys.path.insert(0, str(app_dir.resolve()))
        what = load_agent(agent)
    logs.configure()
    sys.exit(run(what, kafka_settings(), settings, codec()))


def _split(command: str) -> list[str]:
    try:
        arguments = shlex.split(command)
    except ValueError as error:
        raise click.UsageError(f"--exec: {error}") from None
    if not arguments:
        raise click.UsageError("--exec: a command is expected.")
    return arguments

"""The `headrace` command: what there is, in which group, and how errors are shown.

A command's module is imported when the command is used, so that `headrace --help` stays quick and a
small install starts whole. Our own errors end as one message and exit status 1.
"""

from importlib import import_module

import click

from headrace.schemas.errors import HeadraceError

COMMANDS = {
    "assembler": "headrace.cli.processor_commands:assembler",
    "batcher": "headrace.cli.processor_commands:batcher",
    "dead-letters": "headrace.cli.dead_letter_commands:dead_letters",
    "demo": "headrace.cli.demo_commands:demo",
    "demo-data": "headrace.cli.demo_data_commands:demo_data",
    "dispatcher": "headrace.cli.processor_commands:dispatcher",
    "down": "headrace.cli.stack_commands:down",
    "feed": "headrace.cli.feed_commands:feed",
    "fetch-kafka": "headrace.cli.stack_commands:fetch_kafka",
    "ingest": "headrace.cli.ingest_commands:ingest",
    "lag": "headrace.cli.lag_commands:lag",
    "migrate": "headrace.cli.sql_commands:migrate",
    "proxy": "headrace.cli.proxy_commands:proxy",
    "resources": "headrace.cli.resource_commands:resources",
    "rollouts": "headrace.cli.rollout_commands:rollouts",
    "runner": "headrace.cli.runner_commands:runner",
    "schemas": "headrace.cli.schema_commands:schemas",
    "sink": "headrace.cli.processor_commands:sink",
    "sql": "headrace.cli.sql_commands:sql",
    "status": "headrace.cli.stack_commands:status",
    "topics": "headrace.cli.topic_commands:topics",
    "train": "headrace.cli.train_commands:train",
    "up": "headrace.cli.stack_commands:up",
}
"""Where each command is."""

SUMMARIES = {
    "Local stack": {
        "up": "Start Kafka, ClickHouse and the processors on this machine.",
        "down": "Stop them. The data stays.",
        "status": "Show what runs, where, and how large it is.",
        "demo": "Train a small model by reinforcement learning, from agents to new weights.",
        "demo-data": "Run the data plane on traces and scripts, and account for every record.",
        "fetch-kafka": "Fetch Kafka's jars by Maven.",
    },
    "Rollouts": {
        "rollouts": "Hand over tasks, see what became of them, wait, cancel.",
        "feed": "Feed a data set to the runners, as fast as the trainer takes it.",
        "runner": "Run an agent on them, a function or a program in any language.",
        "proxy": "Serve models to agents, and record what is generated, token for token.",
        "resources": "Publish and list versions of weights, prompts and endpoints.",
    },
    "Training": {
        "train": "Train a policy on finalized batches, and publish its versions.",
    },
    "Data": {
        "ingest": "Publish recorded traces: OpenAI chats, OTLP/JSON.",
        "sql": "Ask ClickHouse: a query, a file, or at a prompt.",
        "migrate": "Bring ClickHouse's tables and views up to date.",
    },
    "Processors": {
        "dispatcher": "Give rollouts to runners; retries, deadlines, cancellation.",
        "assembler": "Turn the events of attempts into trajectories.",
        "batcher": "Make training batches of the trajectories of groups.",
        "sink": "Write every topic to ClickHouse.",
    },
    "Topics and records": {
        "topics": "Create, check and describe the Kafka topics.",
        "lag": "Show how many records the processors are behind.",
        "dead-letters": "List, show and replay the records that failed.",
        "schemas": "List, lock and check the Avro schemas.",
    },
}
"""What `--help` shows, in its order: the commands' own words would cost their imports."""

_OTHERS = "More"
_LOCAL = "local"
_EXTRAS = (
    {"opentelemetry": "otel"}
    | dict.fromkeys(
        ["clickhouse_connect", "cramjam", "faust", "prometheus_client", "prompt_toolkit", "rocksdict"],
        "streams",
    )
    | dict.fromkeys(["aiohttp", "httptools", "starlette", "uvicorn", "uvloop"], "proxy")
)
"""The extra that brings what the core install lacks, where that is not `local`."""


class _Group(click.Group):
    """Imports commands late, and shows our own errors as a message, not as a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click calls it so
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        try:
            command: click.Command = getattr(import_module(module), attribute)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing == "headrace":
                raise
            return _unavailable(cmd_name, missing)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        shown = {name for summaries in SUMMARIES.values() for name in summaries}
        others = {
            name: command.get_short_help_str(formatter.width)
            for name in self.list_commands(ctx)
            if name not in shown and (command := self.get_command(ctx, name))
        }
        for section, summaries in (SUMMARIES | {_OTHERS: others}).items():
            rows = [(name.ljust(width), words) for name, words in summaries.items() if name in COMMANDS]
            if rows:
                with formatter.section(section):
                    formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except HeadraceError as error:
            if ctx.params["debug"]:
                raise
            raise click.ClickException(str(error)) from error
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing not in _EXTRAS or ctx.params["debug"]:
                raise
            raise click.ClickException(_needs(missing)) from error


def _needs(module: str) -> str:
    extra = _EXTRAS.get(module, _LOCAL)
    return f"Needs {module}, which is not installed: pip install 'headrace[{extra}]'."


def _unavailable(name: str, module: str) -> click.Command:
    """Stands for a command whose packages are not installed."""
    words = _needs(module)

    def refuse() -> None:
        raise click.ClickException(words)

    # Whatever options the command would take, the answer is the same.
    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(name, callback=refuse, help=words, context_settings=anything)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="headrace", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, envvar="HEADRACE_DEBUG", help="Show the traceback of an error.")
def main(*, debug: bool) -> None:
    """Event streaming on Kafka that trains LLM agents while they work.

    Commands find Kafka and ClickHouse by HEADRACE_KAFKA_* and HEADRACE_CLICKHOUSE_*; where these are not
    set, in the local stack of $HEADRACE_HOME (./.headrace).
    """

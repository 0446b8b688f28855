"""`headrace proxy`: serves models to agents and records what they generate; and its keys."""

import sys
from pathlib import Path

import click
from rich.console import Console

from headrace.cli import logs
from headrace.cli.endpoints import codec, kafka_settings, read_settings
from headrace.cli.examples import examples
from headrace.cli.tables import Column, print_table

_PATH = click.Path(dir_okay=False, path_type=Path)
_NAMES = {"upstream": "upstreams", "keys": "keys_file"}


@click.group(
    invoke_without_command=True,
    epilog=examples(
        "headrace proxy --upstream http://127.0.0.1:8000",
        "headrace proxy --upstream http://gpu1:8000 --upstream http://gpu2:8000 --weights policy",
        "headrace proxy keys add trainer --keys proxy-keys.json",
        "headrace runner my_agents:solve --proxy http://127.0.0.1:8500",
    ),
)
@click.option(
    "--upstream",
    metavar="URL",
    multiple=True,
    help="An engine: vLLM, or any OpenAI-compatible API. Give it for each.",
)
@click.option(
    "--upstream-kind",
    type=click.Choice(["auto", "vllm", "openai"]),
    help="Only vLLM gives token ids and takes new weights.  [default: auto, asks it]",
)
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="0 takes any that is free.  [default: 8500]")
@click.option(
    "--weights",
    metavar="NAME",
    help="The resource whose versions the engines follow; empty for none.  [default: policy]",
)
@click.option("--keys", type=_PATH, metavar="FILE", help="API keys; without, only loopback is listened on.")
@click.option("--allow-anonymous", is_flag=True, default=None, help="Listen elsewhere without keys.")
@click.option(
    "--max-calls", type=click.IntRange(min=1), help="Calls at a time; more get 429.  [default: 1024]"
)
@click.pass_context
def proxy(ctx: click.Context, /, **options: object) -> None:
    """Serve models to agents, and record what is generated before they have all of it.

    Agents use {proxy}/a/{attempt_id}/v1 as the base URL of OpenAI's API (chat completions, responses,
    completions), {proxy}/a/{attempt_id} as that of Anthropic's. `headrace runner --proxy URL` opens attempts
    and tells its agents. Token ids, logprobs and the weights' version of each call go to Kafka; while Kafka
    can't take them, calls are refused.

    Runs until SIGTERM or Ctrl-C. Settings come from HEADRACE_KAFKA_* and HEADRACE_PROXY_*; the upstream's key
    from HEADRACE_PROXY_UPSTREAM_API_KEY.
    """
    if ctx.invoked_subcommand is not None:
        return
    from headrace.proxy.run import run  # noqa: PLC0415  an extra, and half a second
    from headrace.proxy.settings import ProxySettings  # noqa: PLC0415

    given = {_NAMES.get(name, name): value for name, value in options.items() if value not in (None, ())}
    settings = read_settings(ProxySettings).model_copy(update=given)
    logs.configure()
    sys.exit(run(kafka_settings(), settings, codec()))


@proxy.group(
    epilog=examples(
        "headrace proxy keys add trainer", "headrace proxy keys list", "headrace proxy keys revoke x"
    )
)
def keys() -> None:
    """Make, list and revoke API keys. A running proxy takes changes in within seconds."""


_keys_file = click.option(
    "--keys",
    "path",
    type=_PATH,
    metavar="FILE",
    default="proxy-keys.json",
    envvar="HEADRACE_PROXY_KEYS_FILE",
    show_default=True,
    help="Where they are kept, as hashes.",
)


@keys.command()
@click.argument("name")
@_keys_file
def add(name: str, path: Path) -> None:
    """Make a key and print it, once: only its hash is kept."""
    from headrace.proxy.keys import add_key  # noqa: PLC0415

    click.echo(add_key(path, name))
    click.echo(f"This is the only time it is shown. Its hash is in {path}.", err=True)


@keys.command("list")
@_keys_file
def list_keys(path: Path) -> None:
    """List the keys' names."""
    from headrace.proxy.keys import read_keys  # noqa: PLC0415

    rows = [(key.name, f"{key.created:%Y-%m-%d %H:%M:%S}") for key in read_keys(path)]
    print_table(Console(), [Column("name"), Column("created", is_whole=True)], rows)


@keys.command()
@click.argument("name")
@_keys_file
def revoke(name: str, path: Path) -> None:
    """Take a key away."""
    from headrace.proxy.keys import revoke_key  # noqa: PLC0415

    revoke_key(path, name)
    click.echo(f"{name} is revoked", err=True)

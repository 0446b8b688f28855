"""How a person says what shall run and how, and which rollouts are meant."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any, get_args

import click
from pydantic import ValidationError

from headrace.schemas.codec import Codec, describe
from headrace.schemas.errors import FatalError
from headrace.schemas.records import RolloutConfig
from headrace.schemas.records.rollout import AttemptOutcome, Mode
from headrace.streams.client.rollout_history import scan_rollouts
from headrace.streams.settings import KafkaSettings

Decorated = Callable[..., None]

_DEFAULTS = RolloutConfig()
_FAILURES: tuple[AttemptOutcome, ...] = ("failed", "timeout", "unresponsive")
NONE = "none"


class PairType(click.ParamType[tuple[str, str]]):
    """NAME=VALUE."""

    name = "pair"

    def convert(
        self,
        value: object,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        if not name or not equals:
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        return name, text


class PinType(click.ParamType[tuple[str, int]]):
    """NAME=VERSION."""

    name = "pin"

    def convert(
        self,
        value: object,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        name, _, version = str(value).rpartition("=")
        if not name or not (version.isascii() and version.isdigit()):
            self.fail(f"{value!r} is not NAME=VERSION", param, ctx)
        return name, int(version)


mode_option = click.option(
    "--mode",
    type=click.Choice(get_args(Mode)),
    default="train",
    show_default=True,
    help="val and test never train.",
)


def config_options(command: Decorated) -> Decorated:
    """The fields of a rollout's config; `config_of` takes them."""
    return _with(
        command,
        _seconds("--timeout", "timeout_s", "An attempt's deadline."),
        _seconds("--heartbeat-timeout", "heartbeat_timeout_s", "How long an attempt may be silent."),
        click.option(
            "--max-attempts",
            type=click.IntRange(1, 1000),
            default=_DEFAULTS.max_attempts,
            show_default=True,
            help="Of a rollout, with the first.",
        ),
        _outcomes("--retry-on", "retry_on", _FAILURES, "An end that is tried again; may be given again"),
        _seconds("--reward-grace", "reward_grace_s", "How long an outcome reward may come after the end."),
        _outcomes(
            "--accept", "accept", get_args(AttemptOutcome), "An end that may train; may be given again"
        ),
        click.option(
            "--credit-rule", default=_DEFAULTS.credit_rule, show_default=True, help="From rewards to steps."
        ),
        click.option("--agent", "agents", multiple=True, help="Whose calls train; may be given again; all."),
    )


def config_of(options: Mapping[str, Any]) -> RolloutConfig:
    """FatalError for what can't be."""
    outcomes = {name: _chosen(options[name], name) for name in ("retry_on", "accept")}
    try:
        return RolloutConfig.model_validate(dict(options) | outcomes)
    except ValidationError as error:
        raise FatalError(describe(error)) from None


def which_rollouts(command: Decorated) -> Decorated:
    """IDs, a file of them, or a group; `ids_of` takes them."""
    return _with(
        command,
        click.argument("ids", nargs=-1, metavar="[IDS]..."),
        click.option(
            "--file",
            "-f",
            type=click.File(encoding="utf-8"),
            help="Ids, one a line; - for the standard input.",
        ),
        click.option("--group", "-g", help="All rollouts of this group."),
    )


def ids_of(
    ids: Iterable[str], file: IO[str] | None, group: str | None, settings: KafkaSettings, codec: Codec
) -> list[str]:
    """The ids meant, each once; UsageError where none are said."""
    found = list(ids)
    if file is not None:
        found += [line.strip() for line in file if line.strip()]
    if group is not None:
        members = [
            state.rollout_id for state in scan_rollouts(settings, codec).values() if state.group_id == group
        ]
        if not members:
            raise FatalError(f"there are no rollouts of group {group}")
        found += sorted(members)
    if not found:
        raise click.UsageError("say which rollouts: ids, --file or --group")
    return list(dict.fromkeys(found))


def output_option(help_text: str) -> Callable[[Decorated], Decorated]:
    return click.option(
        "--output", "-o", type=click.Path(dir_okay=False, path_type=Path, allow_dash=True), help=help_text
    )


def _seconds(flag: str, name: str, help_text: str) -> Callable[[Decorated], Decorated]:
    return click.option(
        flag,
        name,
        type=click.FloatRange(min=0),
        default=getattr(_DEFAULTS, name),
        show_default=True,
        metavar="SECONDS",
        help=help_text,
    )


def _outcomes(
    flag: str, name: str, choices: Iterable[str], help_text: str
) -> Callable[[Decorated], Decorated]:
    default = getattr(_DEFAULTS, name)
    return click.option(
        flag,
        name,
        type=click.Choice([*choices, NONE]),
        multiple=True,
        default=default,
        show_default=True,
        help=f"{help_text}; {NONE} for none.",
    )


def _chosen(outcomes: tuple[str, ...], name: str) -> Any:  # noqa: ANN401  validated by the model
    if NONE not in outcomes:
        return tuple(dict.fromkeys(outcomes))
    if set(outcomes) != {NONE}:
        raise click.UsageError(f"--{name.replace('_', '-')} {NONE} goes with no other")
    return ()


def _with(command: Decorated, *options: Callable[[Decorated], Decorated]) -> Decorated:
    for option in reversed(options):
        command = option(command)
    return command

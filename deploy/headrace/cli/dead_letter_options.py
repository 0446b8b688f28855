"""How a person says which dead letters are meant."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import click

from headrace.cli.dead_letter_log import Place

_AGO = re.compile(r"(\d+)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class Since(click.ParamType[datetime]):
    """A moment: `90s`, `15m`, `2h`, `7d` ago, or an ISO time, which is in UTC unless it says otherwise."""

    name = "when"

    def convert(
        self,
        value: object,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> datetime:
        if isinstance(value, datetime):
            return value
        ago = _AGO.fullmatch(str(value))
        try:
            if ago:
                return datetime.now(UTC) - timedelta(seconds=int(ago[1]) * _SECONDS[ago[2]])
            moment = datetime.fromisoformat(str(value))
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is neither like 15m, 2h or 7d, nor an ISO time", param, ctx)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


class PlaceType(click.ParamType[Place]):
    """TOPIC:PARTITION:OFFSET, as `list` shows it."""

    name = "place"

    def convert(
        self,
        value: object,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Place:
        if isinstance(value, Place):
            return value
        try:
            return Place.parse(str(value))
        except ValueError:
            self.fail(f"{value!r} is not TOPIC:PARTITION:OFFSET", param, ctx)


def filters(command: Callable[..., None]) -> Callable[..., None]:
    """Options that say which dead letters are meant."""
    options = [
        click.option("--topic", help="Of the records: short (spans) or full (headrace.spans.v1)."),
        click.option("--reason", help="As `list` shows it: bad_record, key_mismatch …"),
        click.option("--consumer", help="Who met them: assembler, sink …"),
        click.option("--since", type=Since(), help="Dead since then: 15m, 2h, 7d, or an ISO time (UTC)."),
    ]
    for option in reversed(options):
        command = option(command)
    return command

"""The `headrace` command.

A command's module is imported when the command is used, so that a small install starts fast and whole.
"""

from importlib import import_module

import click

from headrace.schemas.errors import HeadraceError

COMMANDS = {
    "down": "headrace.cli.stack_commands:down",
    "fetch-kafka": "headrace.cli.stack_commands:fetch_kafka",
    "schemas": "headrace.cli.schema_commands:schemas",
    "status": "headrace.cli.stack_commands:status",
    "up": "headrace.cli.stack_commands:up",
}
"""Where each command is."""


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
            if (error.name or "").partition(".")[0] == "headrace":
                raise
            return _unavailable(cmd_name, error.name)
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except HeadraceError as error:
            raise click.ClickException(str(error)) from error


def _unavailable(name: str, module: str | None) -> click.Command:
    """Stands for a command whose packages are not installed, also in the list of commands."""
    words = f"Needs {module}, which is not installed: pip install 'headrace[local]'."

    def refuse() -> None:
        raise click.ClickException(words)

    # Whatever options the command would take, the answer is the same.
    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(name, callback=refuse, help=words, context_settings=anything)


main = _Group("headrace", help="Event streaming on Kafka that trains LLM agents while they work.")

"""`headrace runner`: what it takes, and what it says of the rest."""

import click
import pytest
from click.testing import CliRunner

from headrace.cli.runner_commands import runner
from headrace.schemas.errors import FatalError


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Either MODULE:AGENT or --exec COMMAND"),
        (["a:b", "--exec", "c"], "Either MODULE:AGENT or --exec COMMAND"),
        (["--exec", " "], "a command is expected"),
        (["--exec", "'"], "No closing quotation"),
        (["a:b", "--concurrency", "0"], "--concurrency"),
        (["a:b", "--drain-timeout", "-1"], "--drain-timeout"),
        (["a:b", "--base-url", "http://a", "--proxy", "http://b"], "exclude each other"),
        (["a:b", "--app-dir", "/no/such"], "--app-dir"),
    ],
)
def test_wrong_usage_is_explained(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(runner, arguments)
    assert result.exit_code == click.UsageError.exit_code
    assert words in result.output


@pytest.mark.parametrize("place", ["no_such_module:agent", "json:nothing", "json"])
def test_an_agent_that_is_not_there_is_a_message(place: str) -> None:
    result = CliRunner().invoke(runner, [place])
    assert isinstance(result.exception, FatalError)


def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_RUNNER_CONCURRENCY", "many")
    result = CliRunner().invoke(runner, ["json:dumps"])
    assert isinstance(result.exception, FatalError)
    assert "HEADRACE_RUNNER_CONCURRENCY" in str(result.exception)

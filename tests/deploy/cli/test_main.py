import json
import subprocess
import sys
from importlib.metadata import version

import click
import pytest
from click.testing import CliRunner

from headrace.cli import main as module
from headrace.cli.main import COMMANDS, SUMMARIES, main
from headrace.schemas.errors import FatalError

HEAVY = {
    "aiokafka",
    "clickhouse_connect",
    "confluent_kafka",
    "faust",
    "prompt_toolkit",
    "pydantic",
    "rich",
    "torch",
}


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """`headrace stop`, `headrace lack` and `headrace break`."""

    def command(name: str, error: Exception) -> None:
        def fail() -> None:
            raise error

        sys.modules[f"tests_{name}"] = type(sys)(f"tests_{name}")
        setattr(sys.modules[f"tests_{name}"], name, click.Command(name, callback=fail))
        monkeypatch.setitem(COMMANDS, name, f"tests_{name}:{name}")

    command("stop", FatalError("the partition is flooded"))
    command("lack", ModuleNotFoundError("No module", name="clickhouse_connect.driver"))
    command("broken", ModuleNotFoundError("No module", name="something_else"))


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    program = (
        "import json, sys; from click.testing import CliRunner; from headrace.cli.main import main; "
        "print(json.dumps([CliRunner().invoke(main, ['--help']).output, list(sys.modules)]))"
    )
    text, modules = json.loads(subprocess.check_output([sys.executable, "-c", program], timeout=60))
    assert HEAVY.isdisjoint(modules)
    for name in COMMANDS:
        assert f"  {name} " in text


def test_each_command_is_in_one_group_with_a_summary() -> None:
    grouped = [name for summaries in SUMMARIES.values() for name in summaries]
    assert sorted(grouped) == sorted(COMMANDS)


@pytest.mark.parametrize("name", ["sql", "migrate", "topics", "lag", "dead-letters"])
def test_help_of_a_command_has_examples(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--help"])
    assert f"\n    headrace {name}" in result.output
    assert "Examples:" in result.output


def test_version() -> None:
    assert (
        CliRunner().invoke(main, ["--version"], prog_name="headrace").output
        == f"headrace {version('headrace')}\n"
    )


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("stop", "Error: the partition is flooded\n"),
        (
            "lack",
            "Error: Needs clickhouse_connect, which is not installed: pip install 'headrace[streams]'.\n",
        ),
    ],
)
def test_our_errors_are_one_line(name: str, words: str) -> None:
    result = CliRunner().invoke(main, [name])
    assert (result.exit_code, result.output) == (1, words)


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize("name", ["stop", "lack"])
@pytest.mark.parametrize("arguments", [["--debug"], []], ids=["option", "environment"])
def test_debug_lets_the_traceback_through(name: str, arguments: list[str]) -> None:
    env = {} if arguments else {"HEADRACE_DEBUG": "1"}
    result = CliRunner(env=env).invoke(main, [*arguments, name])
    assert isinstance(result.exception, FatalError | ModuleNotFoundError)


@pytest.mark.usefixtures("failing")
def test_a_missing_module_of_no_extra_is_a_bug() -> None:
    assert isinstance(CliRunner().invoke(main, ["broken"]).exception, ModuleNotFoundError)


def test_a_command_whose_import_fails_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.COMMANDS, "far", "faust_is_missing.anywhere:far")
    result = CliRunner().invoke(main, ["far", "--any", "thing"])
    assert result.exit_code == 1
    assert "Needs faust_is_missing, which is not installed" in result.output

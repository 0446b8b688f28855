"""Agents: marked, found, and what their errors say."""

import sys
from pathlib import Path

import pytest

from headrace.schemas.errors import FatalError
from headrace.streams.runner.agent import MAX_ERROR_CHARS, Agent, agent, describe_error, load_agent

MODULE = """
from headrace.streams.runner import agent

@agent
async def marked(task, resources):
    return 1.0

def plain(task, resources):
    return task["n"]

class Solver:
    async def __call__(self, task, resources):
        return 0.5

solver = Solver()

class Held:
    @staticmethod
    def solve(task, resources):
        return 1

not_one = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"agents_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield_name = name
    monkeypatch.delitem(sys.modules, name, raising=False)
    return yield_name


@pytest.mark.parametrize(
    ("name", "is_async"),
    [("marked", True), ("plain", False), ("solver", True), ("Held.solve", False)],
)
def test_any_callable_may_be_an_agent(module: str, name: str, is_async: bool) -> None:  # noqa: FBT001
    assert load_agent(f"{module}:{name}").is_async is is_async


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("{}", "MODULE:NAME is expected"),
        ("{}:", "MODULE:NAME is expected"),
        ("{}:absent", "no agent 'absent' there; agents in it: marked"),
        ("{}:not_one", "no agent 'not_one' there"),
        ("nowhere_at_all:solve", "no module 'nowhere_at_all'"),
    ],
)
def test_what_is_none_is_named(module: str, place: str, words: str) -> None:
    with pytest.raises(FatalError, match=words):
        load_agent(place.format(module))


def test_a_marked_function_can_still_be_called() -> None:
    @agent
    def double(task: float, resources: object) -> float:
        assert resources == {}
        return 2 * task

    assert isinstance(double, Agent)
    assert double(3) == 6


def test_an_error_says_what_and_where() -> None:
    try:
        raise ValueError("no such tool")  # noqa: TRY301  its traceback is what counts
    except ValueError as error:
        words = describe_error(error)
    assert words.startswith("ValueError: no such tool (test_agent.py:")


def test_an_error_is_bounded_and_whole() -> None:
    assert len(describe_error(ValueError("x" * 10_000))) == MAX_ERROR_CHARS
    assert describe_error(ValueError("\ud83d")) == "ValueError: ?"
    assert describe_error(KeyboardInterrupt()) == "KeyboardInterrupt"

"""What an agent gives as its reward (C1, C17)."""

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.streams.runner.errors import InvalidRewardError
from headrace.streams.runner.rewards import read_last_line, read_returned


class Scalar:
    """As numpy's and torch's are."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __float__(self) -> float:
        return self.value


@pytest.mark.parametrize(
    ("value", "rewards"),
    [
        pytest.param(None, {}, id="None is no reward"),
        pytest.param(0, {"outcome": 0.0}, id="0 is one"),
        pytest.param(0.25, {"outcome": 0.25}, id="float"),
        pytest.param(True, {"outcome": 1.0}, id="a comparison"),
        pytest.param(Fraction(1, 4), {"outcome": 0.25}, id="fraction"),
        pytest.param(Decimal("0.25"), {"outcome": 0.25}, id="decimal"),
        pytest.param(Scalar(0.5), {"outcome": 0.5}, id="scalar"),
        pytest.param({}, {}, id="no names"),
        pytest.param({"outcome": 1, "style": 0.5}, {"outcome": 1.0, "style": 0.5}, id="by name"),
        pytest.param({"reward": 1}, {"outcome": 1.0}, id="as commands print it"),
        pytest.param({"reward": None, "style": 1}, {"style": 1.0}, id="None by name"),
        pytest.param({"rewards": {"style": 1}, "reward": 0}, {"style": 1.0, "outcome": 0.0}, id="nested"),
    ],
)
def test_what_a_function_may_return(value: Any, rewards: dict[str, float]) -> None:
    assert read_returned(value) == rewards


@pytest.mark.parametrize(
    ("value", "words"),
    [
        pytest.param(math.nan, "'outcome' is nan", id="nan"),
        pytest.param(math.inf, "'outcome' is inf", id="inf"),
        pytest.param(Scalar(math.nan), "'outcome' is nan", id="a scalar's nan"),
        pytest.param(10**400, "'outcome' can't be read as a number", id="beyond a float"),
        pytest.param("0.5", "returned str", id="text"),
        pytest.param([0.5], "returned list", id="list"),
        pytest.param((0.5, {}), "returned tuple", id="tuple"),
        pytest.param({"style": -math.inf}, "'style' is -inf", id="by name"),
        pytest.param({"style": "good"}, "'style' is of type str", id="text by name"),
        pytest.param({1: 0.5}, "name is of type int", id="no name"),
        pytest.param({"": 0.5}, "or empty", id="empty name"),
    ],
)
def test_what_it_may_not_return(value: Any, words: str) -> None:
    with pytest.raises(InvalidRewardError, match=words):
        read_returned(value)


@pytest.mark.parametrize(
    ("output", "rewards"),
    [
        pytest.param("", {}, id="nothing"),
        pytest.param("\n \n", {}, id="blank"),
        pytest.param("0.5", {"outcome": 0.5}, id="number"),
        pytest.param("thinking\n0\n\n", {"outcome": 0.0}, id="the last line that is not empty"),
        pytest.param("1e-3\r\n", {"outcome": 0.001}, id="another system's end of line"),
        pytest.param("0.5\nbye", {}, id="talk behind it"),
        pytest.param('{"reward": 1}', {"outcome": 1.0}, id="object"),
        pytest.param('{"reward": null}', {}, id="null is not 0"),
        pytest.param('{"rewards": {"outcome": 1, "style": 0}}', {"outcome": 1.0, "style": 0.0}, id="names"),
        pytest.param('{"reward": 1, "rewards": {"style": 0}}', {"outcome": 1.0, "style": 0.0}, id="both"),
        pytest.param('{"answer": 42, "loss": NaN}', {}, id="an object that speaks of something else"),
        pytest.param("true", {}, id="true"),
        pytest.param('"0.5"', {}, id="text"),
        pytest.param("[0.5]", {}, id="list"),
        pytest.param("0.5 0.6", {}, id="two numbers"),
        pytest.param(".5", {}, id="no JSON"),
        pytest.param("[" * 100_000, {}, id="deep"),
    ],
)
def test_what_a_command_may_print(output: str, rewards: dict[str, float]) -> None:
    assert read_last_line(output) == rewards


@pytest.mark.parametrize(
    ("output", "words"),
    [
        pytest.param("NaN", "NaN", id="NaN"),
        pytest.param("nan", "nan", id="Python's and C's nan"),
        pytest.param("-inf", "-inf", id="inf"),
        pytest.param("Infinity", "Infinity", id="Infinity"),
        pytest.param("1e999", "is inf", id="a number beyond a float"),
        pytest.param('{"reward": NaN}', "'outcome' is nan", id="in an object"),
        pytest.param('{"rewards": {"style": -Infinity}}', "'style' is -inf", id="by name"),
        pytest.param('{"reward": "0.5"}', "type str", id="text"),
        pytest.param('{"reward": [1]}', "type list", id="list"),
        pytest.param('{"rewards": 1}', "no object", id="rewards without names"),
    ],
)
def test_what_it_may_not_print(output: str, words: str) -> None:
    with pytest.raises(InvalidRewardError, match=words):
        read_last_line(output)


@given(st.text(max_size=200))
def test_any_output_is_read_or_refused(output: str) -> None:
    try:
        rewards = read_last_line(output)
    except InvalidRewardError:
        return
    assert all(math.isfinite(value) for value in rewards.values())


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_that_is_printed_is_that_float(value: float) -> None:
    assert read_last_line(repr(value)) == {"outcome": value}

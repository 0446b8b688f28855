import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.trainer.curve import curve, shrunk


@pytest.mark.parametrize(
    ("values", "width", "expected"),
    [
        pytest.param([], 5, "", id="nothing yet"),
        pytest.param([0.0, 1.0], 5, "▁█", id="two"),
        pytest.param([0.5, 0.5, 0.5], 5, "▄▄▄", id="flat"),
        pytest.param([0.0, 0.0, 1.0, 1.0], 2, "▁█", id="averaged"),
        pytest.param([1.0], 0, "", id="no room"),
    ],
)
def test_curve(values: list[float], width: int, expected: str) -> None:
    assert curve(values, width) == expected


@given(st.lists(st.floats(-10, 10), min_size=1), st.integers(1, 80))
def test_no_value_is_left_out(values: list[float], width: int) -> None:
    means = shrunk(values, width)
    assert len(means) == min(len(values), width)
    assert min(values) - 1e-9 <= min(means) <= max(means) <= max(values) + 1e-9

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from headrace.cli.cells import fit, fitted, natural_width, plain, shortened, visible


@pytest.mark.parametrize(
    ("text", "width", "wanted"),
    [
        pytest.param("short", 5, "short", id="fits"),
        pytest.param("abcdefghij", 7, "abc…hij", id="middle"),
        pytest.param("abcdefghij", 6, "abc…ij", id="even"),
        pytest.param("abcdefghij", 2, "a…", id="two"),
        pytest.param("abcdefghij", 1, "…", id="one"),
        pytest.param("abcdefghij", 0, "", id="nothing"),
        pytest.param("日本語日本語", 7, "日…語", id="wide characters never cut in half"),
        pytest.param("ab   cdef   gh", 9, "ab…gh", id="no space beside the ellipsis"),
    ],
)
def test_text_is_shortened_in_the_middle(text: str, width: int, wanted: str) -> None:
    assert shortened(text, width) == wanted


@given(st.text(), st.integers(min_value=0, max_value=60))
def test_shortened_text_fits(text: str, width: int) -> None:
    assert cell_len(shortened(visible(text), width)) <= width


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (None, "NULL"),
        (True, "true"),
        (1.5, "1.5"),
        ([1, None, "a"], "[1, NULL, 'a']"),
        ({"a": [1], "b": "x"}, "{a: [1], b: 'x'}"),
        ("two\nlines\t\x1b[31mred\x9b", "two\\nlines\\t\\x1b[31mred\\x9b"),
        ("\u202eright to left", "\\u202eright to left"),
        (b"\xff\x00 ok".decode(errors="surrogateescape"), "\\xff\\x00 ok"),
    ],
    ids=["null", "bool", "float", "array", "map", "control", "bidi", "bytes"],
)
def test_values_are_plain_and_harmless(value: object, wanted: str) -> None:
    assert plain(value) == wanted


@pytest.mark.parametrize(
    ("items", "width", "wanted"),
    [
        pytest.param([1, 2, 3], 9, "[1, 2, 3]", id="fits"),
        pytest.param(list(range(512)), 24, "[0, 1, 2, … 512 items]", id="cut"),
        pytest.param(list(range(100_000)), 20, "[0, … 100,000 items]", id="long"),
        pytest.param(["x" * 99, "y"], 20, "[… 2 items]", id="no item fits"),
        pytest.param([], 2, "[]", id="empty"),
    ],
)
def test_arrays_show_their_length(items: list[object], width: int, wanted: str) -> None:
    assert fitted(items, width) == wanted


@given(st.lists(st.integers() | st.text(max_size=5) | st.none()), st.integers(min_value=1, max_value=60))
def test_arrays_fit(items: list[object], width: int) -> None:
    assert cell_len(fitted(items, width)) <= width


def test_an_array_asks_for_no_more_than_its_share() -> None:
    assert natural_width(list(range(5000))) <= 48


@pytest.mark.parametrize(
    ("natural", "least", "available", "wanted"),
    [
        pytest.param([5, 5], [5, 5], 10, [5, 5], id="fits"),
        pytest.param([5, 100, 100], [5, 10, 10], 45, [5, 20, 20], id="the widest give way"),
        pytest.param([5, 100, 100], [5, 10, 10], 46, [5, 21, 20], id="what is left over is used"),
        pytest.param([26, 100], [26, 10], 40, [26, 14], id="a whole column keeps its width"),
        pytest.param([30, 100], [30, 10], 39, None, id="too narrow"),
        pytest.param([4, 4], [10, 10], 8, [4, 4], id="least of what is asked"),
        pytest.param([], [], 10, [], id="no columns"),
    ],
)
def test_widths(natural: list[int], least: list[int], available: int, wanted: list[int] | None) -> None:
    assert fit(natural, least, available) == wanted


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 30)), max_size=12),
    st.integers(min_value=0, max_value=400),
)
def test_widths_fit_and_waste_nothing(columns: list[tuple[int, int]], available: int) -> None:
    natural = [width for width, _ in columns]
    least = [low for _, low in columns]
    widths = fit(natural, least, available)
    if widths is None:
        assert sum(map(min, natural, least)) > available
        return
    assert sum(widths) == min(sum(natural), available)
    assert all(
        min(low, wide) <= width <= wide for width, wide, low in zip(widths, natural, least, strict=True)
    )

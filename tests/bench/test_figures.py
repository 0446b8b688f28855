from collections.abc import Sequence

import pytest
from tests.bench.figures import GROUPS, Figure, Peer, median, number, select
from tests.bench.statistics import quantile, slope

from headrace.schemas.errors import FatalError


@pytest.mark.parametrize(
    ("figure", "line"),
    [
        (Figure("freshness_p99_ms", 412.4, "ms"), "bench freshness_p99_ms 412 ms"),
        (
            Figure("sink_rows_per_s", 60_000, "rows/s", Peer("raw_insert", 100_000)),
            "bench sink_rows_per_s 60000 rows/s peer raw_insert 100000 ratio 0.60",
        ),
        (
            Figure("proxy_added_p50_ms_1", 0.5, "ms", Peer("litellm_added_p50_ms_1", 12), is_cost=True),
            "bench proxy_added_p50_ms_1 0.50 ms peer litellm_added_p50_ms_1 12.0 ratio 24.00",
        ),
        (
            Figure("proxy_added_p50_ms_1", -0.001, "ms", Peer("litellm_added_p50_ms_1", 2), is_cost=True),
            "bench proxy_added_p50_ms_1 -0.00 ms peer litellm_added_p50_ms_1 2.00 ratio 200.00",
        ),
    ],
    ids=["alone", "with a peer", "less is better", "less than none"],
)
def test_a_figure_is_one_line(figure: Figure, line: str) -> None:
    assert figure.line() == line


@pytest.mark.parametrize(
    ("value", "text"),
    [(123_456.7, "123457"), (99.96, "100.0"), (12.34, "12.3"), (0.126, "0.13"), (-0.5, "-0.50"), (0, "0.00")],
)
def test_numbers_have_three_digits_or_more(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("only", "groups"),
    [
        (None, ("publisher", "assembler", "sink", "freshness", "span_store")),
        ("log", ("publisher", "assembler", "sink", "freshness", "span_store")),
        ("memory", ("memory",)),
        ("freshness_p99_ms", ("freshness",)),
    ],
    ids=str,
)
def test_a_name_stands_for_groups(only: str | None, groups: Sequence[str]) -> None:
    assert tuple(select(only)) == groups


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    with pytest.raises(FatalError, match=r"'speed'; there are log, publisher, .*memory"):
        select("speed")


def test_no_figure_is_in_two_groups() -> None:
    names = [name for figures in GROUPS.values() for name in figures]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("q", "expected"), [(0.0, 1), (0.5, 50), (0.99, 99), (1.0, 100)], ids=["least", "p50", "p99", "greatest"]
)
def test_quantiles_are_values_that_were_measured(q: float, expected: int) -> None:
    assert quantile(list(range(100, 0, -1)), q) == expected


def test_the_median_of_repeats_goes_by_the_ratio_where_there_is_a_peer() -> None:
    alone = [Figure("f", value, "ms") for value in (3.0, 1.0, 2.0, 9.0)]
    assert median(alone) is alone[2]
    # Fast and slow moments of the machine: 1.0, 3.0 and 2.0 times the peer.
    beside = [
        Figure("f", value, "rows/s", Peer("p", peer)) for value, peer in ((900, 900), (30, 10), (20, 10))
    ]
    assert median(beside) is beside[2]


def test_the_median_of_costs_goes_by_how_many_times_less_they_are() -> None:
    repeats = [
        Figure("f", value, "ms", Peer("p", peer), is_cost=True) for value, peer in ((1, 9), (4, 8), (2, 8))
    ]
    assert median(repeats) is repeats[2]


def test_quantile_of_one_value() -> None:
    assert quantile([7.0], 0.99) == 7.0


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(0, 1), (1, 3), (2, 5)], 2.0),
        ([(0, 4), (1, 4)], 0.0),
        ([(1, 2), (1, 5)], 0.0),
        ([(0, 0), (1, 1), (2, 0)], 0.0),
    ],
    ids=["rising", "flat", "one x", "up and down"],
)
def test_slope(points: list[tuple[float, float]], expected: float) -> None:
    assert slope(points) == pytest.approx(expected)

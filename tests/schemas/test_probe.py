import pytest
from pydantic import ValidationError

from headrace.schemas.probe import Probe

PROBE = Probe(token_ids=(5, 6, 7), logprobs=(-1.0, -2.0))


def test_it_travels_with_a_version() -> None:
    assert Probe.of({"run_id": "r"} | PROBE.metadata()) == PROBE


@pytest.mark.parametrize("metadata", [{}, {"probe": "{"}, {"probe": '{"token_ids": [1], "logprobs": []}'}])
def test_where_there_is_none(metadata: dict[str, str]) -> None:
    assert Probe.of(metadata) is None


def test_the_gap_is_the_mean_difference() -> None:
    assert PROBE.gap([-1.25, -2.0]) == 0.125
    assert PROBE.gap([-0.5, -4.0]) == 1.25


def test_each_token_but_the_first_has_a_logprob() -> None:
    with pytest.raises(ValidationError, match="each token but the first"):
        Probe(token_ids=(1, 2), logprobs=(-1.0, -2.0))

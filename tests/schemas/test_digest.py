from typing import Any

import pytest
from hypothesis import given
from tests.schemas.builders import TIME, make_reward, make_span
from tests.schemas.strategies import records

from headrace.schemas.codec import Codec
from headrace.schemas.digest import content_digest
from headrace.schemas.records import Generation, Record, Span

CODEC = Codec()


@given(record=records)
def test_what_bytes_carry_has_the_same_digest(record: Record) -> None:
    again = CODEC.decode(CODEC.encode(record, "any"), type(record))
    assert content_digest([again]) == content_digest([record])


def generation(**fields: Any) -> Span:
    return make_span(generation=Generation(**({"model": "m"} | fields)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (make_reward(value=0.5), make_reward(value=0.25)),
        (make_reward(sequence_id=1), make_reward(about_sequence_id=1)),
        (make_span(name="ab", status_message="c"), make_span(name="a", status_message="bc")),
        (make_span(attributes={"a": "1"}), make_span(attributes={"a": "", "1": ""})),
        (generation(prompt_token_ids=(1, 2)), generation(response_token_ids=(1, 2))),
        (generation(prompt_token_ids=(1, 2)), generation(prompt_token_ids=(12,))),
        (generation(), make_span()),
    ],
)
def test_different_contents_have_different_digests(one: Record, other: Record) -> None:
    assert content_digest([one]) != content_digest([other])


def test_order_counts() -> None:
    one, other = make_reward(), make_reward(value=0.5)
    assert content_digest([one, other]) != content_digest([other, one])


def test_a_digest_never_changes() -> None:
    """It names batches that are in a log."""
    reward = make_reward(value=0.5, time=TIME, sequence_id=2)
    assert content_digest([reward]) == "04264eea8d866d39d459b88634e81f16bb3378686910a3c54a9fd8b4836b9890"

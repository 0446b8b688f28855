"""C4: which reward belongs to which call is a named rule, on a table of sequences."""

import pytest

from headrace.schemas.errors import BadRecordError
from headrace.streams.processors.credit import GivenCredit, credit_rule

ABOUT_2 = GivenCredit(0.5, about_sequence_id=2, sequence_id=None)
ABOUT_4 = GivenCredit(0.25, about_sequence_id=4, sequence_id=5)
AFTER_2 = GivenCredit(0.125, about_sequence_id=None, sequence_id=3)
BEFORE_ALL = GivenCredit(2.0, about_sequence_id=None, sequence_id=1)
OUTSIDE = GivenCredit(4.0, about_sequence_id=None, sequence_id=None)


@pytest.mark.parametrize(
    ("rule", "steps", "given", "outcome", "expected"),
    [
        ("outcome@1", [1, 2, 4], [], 1.0, [1.0, 1.0, 1.0]),
        ("outcome@1", [1, 2], [ABOUT_2], 0.0, [0.0, 0.0]),
        ("outcome@1", [1, 2], [ABOUT_2], None, [None, None]),
        ("outcome@1", [], [], 1.0, []),
        ("per_step@1", [2, 4], [ABOUT_2, ABOUT_4], None, [0.5, 0.25]),
        ("per_step@1", [2, 4], [ABOUT_2, ABOUT_2], 1.0, [1.0, 1.0]),
        ("per_step@1", [2, 4], [AFTER_2, OUTSIDE], None, [None, None]),
        ("per_step@1", [2, 4], [ABOUT_4], 1.0, [None, 1.25]),
        ("per_step@1", [7], [ABOUT_2], None, [None]),
        ("nearest@1", [2, 4], [AFTER_2], None, [0.125, None]),
        ("nearest@1", [2, 4], [AFTER_2, ABOUT_2], 1.0, [0.625, 1.0]),
        ("nearest@1", [2, 4], [BEFORE_ALL], None, [None, None]),
        ("rewards@1", [2, 4], [AFTER_2, ABOUT_2], 1.0, [0.625, None]),
        ("rewards@1", [2, 4], [AFTER_2, ABOUT_4, OUTSIDE], None, [0.125, 0.25]),
        ("discounted(0.5)@1", [1, 2, 4], [], 1.0, [0.25, 0.5, 1.0]),
        ("discounted(0.5)@1", [2, 4], [ABOUT_2], 1.0, [1.0, 1.0]),
        ("discounted(0.5)@1", [2, 4], [ABOUT_2], None, [0.5, None]),
        ("discounted(0)@1", [1, 2], [], 1.0, [0.0, 1.0]),
        ("discounted(1)@1", [1, 2], [], -1.0, [-1.0, -1.0]),
    ],
)
def test_rules(
    rule: str,
    steps: list[int],
    given: list[GivenCredit],
    outcome: float | None,
    expected: list[float | None],
) -> None:
    assert credit_rule(rule)(steps, given, outcome) == expected


def test_the_order_in_which_rewards_came_does_not_show() -> None:
    given = [GivenCredit(value, 1, None) for value in (1e16, 1.0, -1e16, 1e-9)]
    assert credit_rule("per_step@1")([1], given, None) == credit_rule("per_step@1")([1], given[::-1], None)


@pytest.mark.parametrize(
    "name", ["outcome", "outcome@2", "discounted@1", "discounted(1.5)@1", "discounted(-1)@1"]
)
def test_unknown_rules_are_refused_with_what_there_is(name: str) -> None:
    with pytest.raises(BadRecordError, match=r"unknown credit rule .* outcome@1"):
        credit_rule(name)

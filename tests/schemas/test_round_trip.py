"""What goes into the log comes out of it: every record, every field, to the last bit."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.schemas import strategies
from tests.schemas.builders import make_reward, make_span

from headrace.schemas.codec import Codec
from headrace.schemas.errors import BadRecordError
from headrace.schemas.ids import uuid7
from headrace.schemas.records import RECORDS, Generation, GivenReward, Record, Reward, Span, TrainStep
from headrace.schemas.records.base import Part

ZONES = ["UTC", "Asia/Kathmandu", "America/St_Johns", "Pacific/Kiritimati"]
EXTREME_TIMES = [
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(1900, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(2026, 3, 29, 1, 30, 0, 123_456, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
]


@pytest.fixture(params=ZONES)
def machine_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The zone that this process takes for local."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("model", RECORDS.values(), ids=RECORDS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_round_trip_of_every_record(model: type[Record], data: st.DataObject) -> None:
    codec, record = Codec(), data.draw(strategies.parts(model))
    value = codec.encode(record, "topic")
    again = codec.decode(value, type(record))
    # As JSON, since NaN (which train steps may hold) equals nothing, and -0.0 equals 0.0.
    assert again.model_dump_json() == record.model_dump_json()
    assert codec.encode(again, "topic") == value
    assert again.key == record.key


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(record=strategies.records)
def test_json_round_trip_of_every_record(record: Record) -> None:
    text = record.model_dump_json()
    assert type(record).model_validate_json(text).model_dump_json() == text


@pytest.mark.parametrize("moment", EXTREME_TIMES, ids=str)
def test_timestamps_keep_their_microsecond_whatever_the_machine_s_zone(
    machine_zone: str, moment: datetime
) -> None:
    """C16."""
    codec = Codec()
    again = codec.decode(codec.encode(make_reward(time=moment), "t"), Reward)
    assert again.time == moment
    assert again.time.tzinfo is UTC
    assert again.time.isoformat() == moment.isoformat()


@pytest.mark.parametrize("zone", ZONES)
def test_timestamps_of_other_zones_become_utc(machine_zone: str, zone: str) -> None:
    """C16."""
    codec = Codec()
    local = datetime(2026, 7, 1, 12, 0, 0, 1, tzinfo=ZoneInfo(zone))
    again = codec.decode(codec.encode(make_reward(time=local), "t"), Reward)
    assert again.time == local
    assert again.time.tzinfo is UTC


@given(moment=strategies.timestamps)
def test_a_model_holds_utc_from_any_offset(moment: datetime) -> None:
    reward = make_reward(time=moment)
    assert reward.time.tzinfo is UTC
    assert reward.time == moment


@pytest.mark.parametrize(
    "moment",
    [datetime(2026, 7, 1), "2026-07-01T00:00:00", datetime(2026, 7, 1).date()],  # noqa: DTZ001
    ids=["datetime", "text", "date"],
)
def test_a_time_without_a_zone_is_refused(moment: object) -> None:
    """C16."""
    with pytest.raises(ValidationError, match="timezone info"):
        make_reward(time=moment)


@pytest.mark.parametrize(
    "moment",
    [
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=5))),
    ],
    ids=["late", "early"],
)
def test_a_time_that_utc_can_t_express_is_refused(moment: datetime) -> None:
    with pytest.raises(ValidationError, match="outside the years 1 to 9999"):
        make_reward(time=moment)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), "NaN", "Infinity"], ids=str)
def test_a_reward_that_is_not_finite_is_refused_at_the_edge(value: object) -> None:
    """C17."""
    with pytest.raises(ValidationError, match=r"value\n  Input should be a finite number"):
        make_reward(value=value)
    with pytest.raises(ValidationError, match="finite number"):
        GivenReward(reward_id=uuid7(), name="outcome", value=value)


def test_no_reward_is_not_a_reward_of_0() -> None:
    """C1."""
    with pytest.raises(ValidationError, match="valid number"):
        make_reward(value=None)


def test_logprobs_and_sampling_settings_are_finite() -> None:
    with pytest.raises(ValidationError, match=r"response_logprobs\.1\n"):
        Generation(response_logprobs=(-1.0, float("-inf")))
    with pytest.raises(ValidationError, match="finite number"):
        Generation(sampling={"temperature": float("nan")})


def test_a_train_step_may_say_that_the_run_diverged() -> None:
    codec = Codec()
    step = TrainStep(
        run_id="r",
        step=1,
        algorithm="grpo",
        policy_version=1,
        batch_ids=(),
        metrics={"loss": float("nan"), "kl": float("inf")},
        time=datetime.now(UTC),
    )
    again = codec.decode(codec.encode(step, "t"), TrainStep)
    assert repr(again.metrics) == "{'loss': nan, 'kl': inf}"


@pytest.mark.parametrize(
    "value", [0.0, -0.0, 5e-324, 1.7976931348623157e308, -1.7976931348623157e308, 0.1], ids=repr
)
def test_floats_keep_every_bit(value: float) -> None:
    codec = Codec()
    again = codec.decode(codec.encode(make_reward(value=value), "t"), Reward)
    assert again.value.hex() == value.hex()


@pytest.mark.parametrize(
    ("model", "field", "value"),
    [
        (Reward, "sequence_id", 2**63),
        (Reward, "sequence_id", 0),
        (Reward, "value", 10**400),
        (Span, "span_id", ""),
        (Span, "rollout_id", "6f9619ff-8b86-4011-b42d-00c04fc964ff"),
        (Span, "rollout_id", "01890A5D-AC96-774B-BCCE-B302099A8057"),
        (Span, "rollout_id", "01890a5d-ac96-774b-bcce-b302099a8057\n"),
        (Span, "colour", "red"),
    ],
    ids=["long+1", "zero", "huge", "empty id", "uuid4", "upper case", "line end", "no such field"],
)
def test_what_avro_or_the_contract_can_t_hold_is_refused(
    model: type[Reward | Span], field: str, value: object
) -> None:
    make = make_reward if model is Reward else make_span
    with pytest.raises(ValidationError):
        make(**{field: value})


@pytest.mark.parametrize("token", [-1, 2**31], ids=["negative", "int+1"])
def test_token_ids_are_non_negative_32_bit(token: int) -> None:
    with pytest.raises(ValidationError, match=r"prompt_token_ids\.0"):
        Generation(prompt_token_ids=(token,))


@pytest.mark.parametrize("half", ["\ud83d", "a\udc00b"], ids=["high", "low"])
def test_half_of_a_surrogate_pair_is_an_error_that_does_not_quote_the_text(half: str) -> None:
    with pytest.raises(BadRecordError, match="no Unicode") as caught:
        Codec().encode(make_span(name=f"secret {half}"), "t")
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_models_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        make_reward().value = 2.0  # type: ignore[misc]


def test_encoding_leaves_the_model_as_it_was() -> None:
    span = make_span(generation=Generation(model="m"))
    before = span.model_dump_json()
    Codec().encode(span, "t")
    assert span.model_dump_json() == before
    assert isinstance(span.generation, Generation)


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_part_of_a_record_goes_by_avro(record: type[Part], data: st.DataObject) -> None:
    """`to_avro` leaves no model within: fastavro would look for fields in it and find none."""
    stack: list[object] = [data.draw(strategies.parts(record)).to_avro()]
    while stack:
        item = stack.pop()
        assert not isinstance(item, Part)
        if isinstance(item, dict):
            stack += item.values()
        elif isinstance(item, list | tuple):
            stack += item

"""Hypothesis strategies for every record, derived from the models: a new field is covered by itself."""

import types
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta, timezone
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from hypothesis import strategies as st
from pydantic import AwareDatetime
from pydantic.fields import FieldInfo

from headrace.schemas.ids import derived_uuid7
from headrace.schemas.records import RECORDS, GroupVerdict, Record, Reward, Span
from headrace.schemas.records.attempt import AttemptEvent
from headrace.schemas.records.base import Part

PartT = TypeVar("PartT", bound=Part)

MAX_ITEMS = 3

uuids = st.builds(derived_uuid7, st.integers(0, 2**48 - 1), st.text(st.characters(codec="utf-8"), max_size=4))
texts = st.text(st.characters(codec="utf-8"), max_size=8)
zones = st.integers(-23 * 60 - 59, 23 * 60 + 59).map(lambda minutes: timezone(timedelta(minutes=minutes)))
timestamps = st.one_of(
    st.datetimes(timezones=st.just(UTC)),
    # A day from either end, since UTC must be able to express it too.
    st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=zones),  # noqa: DTZ001
)


def _for_text(constraints: dict[str, Any]) -> st.SearchStrategy[Any]:
    if "pattern" in constraints:
        return uuids  # the one pattern there is
    return st.text(
        st.characters(codec="utf-8"),
        min_size=constraints.get("min_length", 0),
        max_size=min(constraints.get("max_length", 8), 8),
    )


def _for_float(constraints: dict[str, Any]) -> st.SearchStrategy[Any]:
    is_finite = constraints.get("allow_inf_nan") is False
    if "ge" in constraints:
        return st.floats(min_value=constraints["ge"], allow_nan=False, allow_infinity=False)
    return st.floats(allow_nan=not is_finite, allow_infinity=not is_finite)


SIMPLE: dict[Any, Callable[[dict[str, Any]], st.SearchStrategy[Any]]] = {
    bool: lambda _: st.booleans(),
    bytes: lambda _: st.binary(max_size=8),
    float: _for_float,
    int: lambda c: st.integers(c.get("ge"), c.get("le")),
    str: _for_text,
    datetime: lambda _: timestamps,
    AwareDatetime: lambda _: timestamps,
    types.NoneType: lambda _: st.none(),
}


def _constraints(metadata: Iterable[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in metadata:
        if isinstance(item, FieldInfo):
            found |= _constraints(item.metadata)
        for name in ("ge", "le", "min_length", "max_length", "pattern", "allow_inf_nan"):
            value = getattr(item, name, None)
            if value is not None:
                found[name] = value
    return found


def values_of(  # noqa: PLR0911  one for each kind of type
    annotation: Any, metadata: Iterable[Any] = ()
) -> st.SearchStrategy[Any]:
    """Valid values of a field of this type."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in SIMPLE:
        return SIMPLE[annotation](_constraints(metadata))
    if origin is Annotated:
        return values_of(arguments[0], [*arguments[1:], *metadata])
    if origin in {Union, types.UnionType}:
        return st.one_of([values_of(argument, metadata) for argument in arguments])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        return st.lists(values_of(arguments[0]), max_size=MAX_ITEMS).map(tuple)
    if origin is dict:
        return st.dictionaries(texts, values_of(arguments[1]), max_size=MAX_ITEMS)
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return parts(annotation)
    raise AssertionError(f"no strategy for {annotation!r}: add one")


def parts(model: type[PartT]) -> st.SearchStrategy[PartT]:
    """Valid instances of a model, with each defaulted field left out at times."""
    required: dict[Any, st.SearchStrategy[Any]] = {}
    optional: dict[Any, st.SearchStrategy[Any]] = {}
    for name, field in model.model_fields.items():
        (required if field.is_required() else optional)[name] = values_of(field.annotation, field.metadata)
    fields = st.fixed_dictionaries(required, optional=optional)
    return fields.map(lambda values: model(**_coherent(model, values)))


def _coherent(model: type[Part], values: dict[str, Any]) -> dict[str, Any]:
    """Bend what was drawn to the rules between fields."""
    if model is Span:
        is_closed = values.get("kind") == "closed"
        return values | {"sequence_id": None if is_closed else values.get("sequence_id") or 1}
    if model is Reward and values.get("kind") == "closed":
        return values | {"sequence_id": None}
    if model is AttemptEvent:
        status = values["status"] if values["kind"] == "ended" else "running"
        if values["kind"] == "ended" and status in {"preparing", "running"}:
            status = "failed"
        origin = values.get("origin")
        if values["kind"] == "started":
            origin = origin or {"group_id": "g"}
        return values | {"status": status, "origin": None if values["kind"] == "heartbeat" else origin}
    if model is GroupVerdict:
        is_batched = values["status"] == "batched"
        batch_id, reason = values.get("batch_id") or "b", values.get("reason") or "r"
        return values | {
            "batch_id": batch_id if is_batched else None,
            "reason": None if is_batched else reason,
        }
    return values


records: st.SearchStrategy[Record] = st.sampled_from(list(RECORDS.values())).flatmap(parts)
"""Any record at all."""

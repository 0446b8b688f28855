"""What all records share: frozen models whose fields are exactly those of their Avro schema."""

from datetime import UTC, datetime
from functools import cache
from types import NoneType
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, FiniteFloat

AVRO_NAMESPACE = "io.headrace"

UuidV7 = Annotated[
    str, Field(pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$")
]
"""RFC 9562, lower case: keys of later attempts sort later."""


def _to_utc(value: datetime) -> datetime:
    try:
        return value if value.tzinfo is UTC else value.astimezone(UTC)
    except OverflowError:
        raise ValueError("in UTC this time is outside the years 1 to 9999") from None


Timestamp = Annotated[AwareDatetime, AfterValidator(_to_utc)]
"""UTC, microseconds. A datetime without a zone is refused: guessing one shifts history (C16)."""

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
Int32 = Annotated[int, Field(ge=-(2**31), le=INT32_MAX)]
Int64 = Annotated[int, Field(ge=-(2**63), le=INT64_MAX)]
Count = Annotated[int, Field(ge=0, le=INT64_MAX)]
SequenceId = Annotated[int, Field(ge=1, le=INT64_MAX)]
TokenIds = tuple[Annotated[int, Field(ge=0, le=INT32_MAX)], ...]
Logprobs = tuple[FiniteFloat, ...]
Identifier = Annotated[str, Field(min_length=1, max_length=512)]


def now() -> datetime:
    """The wall clock, in UTC."""
    return datetime.now(UTC)


class Part(BaseModel):
    """A record, or a record within one."""

    # As JSON, bytes are base64: a dead letter's value need not be text.
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        ser_json_inf_nan="strings",
        ser_json_bytes="base64",
        val_json_bytes="base64",
    )

    def to_avro(self) -> dict[str, Any]:
        """The fields as fastavro takes them; shares values with the model, so do not change it."""
        nested = _nested_fields(type(self))
        values = self.__dict__
        if not nested:
            return values
        values = values.copy()
        for name, union_branch in nested.items():
            value = values[name]
            if isinstance(value, tuple):
                values[name] = [part.to_avro() for part in value]
            elif value is not None:
                # Naming the branch halves the time to encode: fastavro else validates to find it.
                values[name] = (union_branch, value.to_avro()) if union_branch else value.to_avro()
        return values


class Record(Part):
    """What a topic carries. `key` is the field that the topic is keyed by."""

    key_field: ClassVar[str]

    @property
    def key(self) -> bytes:
        """The record's Kafka key: all that shares it is in one partition, in order."""
        return str(getattr(self, self.key_field)).encode()

    @classmethod
    def from_avro(cls, values: dict[str, Any]) -> Self:
        return cls.model_validate(values)


@cache
def field_names(model: type[Part]) -> frozenset[str]:
    """Names of the fields of a model and of the parts within it."""
    names = set(model.model_fields)
    for field in model.model_fields.values():
        part = _part_within(field.annotation)
        names |= field_names(part) if part else set()
    return frozenset(names)


@cache
def _nested_fields(model: type[Part]) -> dict[str, str | None]:
    """Fields that hold parts, alone, optional or in a tuple; where optional, the Avro name of the part."""
    found: dict[str, str | None] = {}
    for name, field in model.model_fields.items():
        part = _part_within(field.annotation)
        if part is not None:
            is_optional = NoneType in getattr(field.annotation, "__args__", ())
            found[name] = f"{AVRO_NAMESPACE}.{part.__name__}" if is_optional else None
    return found


def _part_within(annotation: Any) -> type[Part] | None:  # noqa: ANN401  any annotation at all
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return annotation
    return next(filter(None, map(_part_within, getattr(annotation, "__args__", ()))), None)

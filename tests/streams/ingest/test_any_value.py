import base64
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.streams.ingest.any_value import as_string, read_attributes, read_value
from headrace.streams.ingest.bad_input import MalformedError
from headrace.streams.ingest.proto_json import Message

# The examples of the specification, common, "AnyValue representation for non-OTLP protocols".
SPECIFIED = [
    pytest.param({"stringValue": "hello world"}, "hello world", id="string"),
    pytest.param({"stringValue": ""}, "", id="empty string"),
    pytest.param({"boolValue": True}, "true", id="true"),
    pytest.param({"boolValue": False}, "false", id="false"),
    pytest.param({"intValue": "42"}, "42", id="int as string"),
    pytest.param({"intValue": -123}, "-123", id="int as number"),
    pytest.param({"intValue": "-9223372036854775808"}, "-9223372036854775808", id="smallest int"),
    pytest.param({"doubleValue": 3.14159}, "3.14159", id="double"),
    pytest.param({"doubleValue": 2}, "2.0", id="double without fraction"),
    pytest.param({"doubleValue": "NaN"}, "NaN", id="NaN"),
    pytest.param({"doubleValue": "-Infinity"}, "-Infinity", id="infinity"),
    pytest.param({"bytesValue": "aGVsbG8gd29ybGQ="}, "aGVsbG8gd29ybGQ=", id="bytes"),
    pytest.param({"bytesValue": "-_8"}, "+/8=", id="bytes in the URL's alphabet, unpadded"),
    pytest.param({}, "", id="nothing"),
    pytest.param({"stringValue": None}, "", id="null is absent"),
    pytest.param({"arrayValue": {}}, "[]", id="empty array"),
    pytest.param({"kvlistValue": {"values": []}}, "{}", id="empty map"),
    pytest.param(
        {
            "arrayValue": {
                "values": [
                    {"intValue": "1"},
                    {"doubleValue": "-Infinity"},
                    {"stringValue": "a"},
                    {"boolValue": True},
                    {
                        "kvlistValue": {
                            "values": [{"key": "nested", "value": {"bytesValue": "aGVsbG8gd29ybGQ="}}]
                        }
                    },
                    {},
                ]
            }
        },
        '[1,"-Infinity","a",true,{"nested":"aGVsbG8gd29ybGQ="},null]',
        id="array",
    ),
]


@pytest.mark.parametrize(("value", "expected"), SPECIFIED)
def test_values_become_strings_by_the_specification(value: dict[str, Any], expected: str) -> None:
    assert as_string(read_value(Message(value, "value"))) == expected


def snake(value: Any) -> Any:
    names = {"Value": "_value"}
    if isinstance(value, dict):
        return {k.replace("Value", names["Value"]): snake(v) for k, v in value.items()}
    return [snake(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(("value", "expected"), SPECIFIED)
def test_names_may_be_those_of_the_proto_file(value: dict[str, Any], expected: str) -> None:
    assert as_string(read_value(Message(snake(value), "value"))) == expected


plain = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.text(st.characters(codec="utf-8"))
    | st.binary()
)
values = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4)
    ),
    max_leaves=12,
)


def encode(value: Any) -> dict[str, Any]:  # noqa: PLR0911  a table
    """As an exporter would write it."""
    match value:
        case None:
            return {}
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            special = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
            return {"doubleValue": value if math.isfinite(value) else special}
        case str():
            return {"stringValue": value}
        case bytes():
            return {"bytesValue": base64.b64encode(value).decode()}
        case list():
            return {"arrayValue": {"values": [encode(item) for item in value]}}
        case _:
            return {"kvlistValue": {"values": [{"key": k, "value": encode(v)} for k, v in value.items()]}}


@given(values)
def test_every_value_is_read_back_and_has_a_string(value: Any) -> None:
    read = read_value(Message(json.loads(json.dumps(encode(value))), "value"))
    assert repr(read) == repr(value), "repr, since NaN is not itself and 1 is not 1.0"
    text = as_string(read)
    if isinstance(value, str):
        assert text == value
    elif isinstance(value, list | dict):
        assert len(json.loads(text)) == len(value)
    elif isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        assert json.loads(text) == value


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({"stringValue": 1}, id="a number for a string"),
        pytest.param({"boolValue": "true"}, id="a string for a boolean"),
        pytest.param({"intValue": "1.5"}, id="a fraction for an int"),
        pytest.param({"intValue": True}, id="a boolean for an int"),
        pytest.param({"intValue": "9223372036854775808"}, id="an int too large"),
        pytest.param({"doubleValue": "inf"}, id="another infinity"),
        pytest.param({"doubleValue": {}}, id="an object for a double"),
        pytest.param({"bytesValue": "a*"}, id="not base64"),
        pytest.param({"arrayValue": [1]}, id="a bare list"),
        pytest.param({"arrayValue": {"values": 1}}, id="values that are none"),
        pytest.param({"stringValue": "a", "intValue": 1}, id="two at once"),
        pytest.param({"stringValueStrindex": 3}, id="a type that is not known"),
    ],
)
def test_wrong_values_are_malformed(value: dict[str, Any]) -> None:
    with pytest.raises(MalformedError):
        read_value(Message(value, "value"))


def test_of_two_attributes_with_one_key_the_last_counts() -> None:
    pairs = [{"key": "k", "value": {"intValue": 1}}, {"key": "k", "value": {"intValue": 2}}]
    assert read_attributes(Message({"attributes": pairs}, "")) == {"k": "2"}


def test_an_attribute_needs_a_key() -> None:
    with pytest.raises(MalformedError, match="no key"):
        read_attributes(Message({"attributes": [{"value": {"intValue": 1}}]}, ""))

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.proxy.sse import EventReader, EventTooLargeError, event


@given(
    datas=st.lists(
        st.binary(min_size=1, max_size=40).filter(lambda each: b"\n" not in each and b"\r" not in each)
    ),
    cuts=st.lists(st.integers(0, 2000)),
    end=st.sampled_from([b"\n", b"\r\n", b"\r"]),
)
def test_events_survive_any_split(datas: list[bytes], cuts: list[int], end: bytes) -> None:
    stream = b"".join(b"data: " + data + end + end for data in datas)
    reader, found, start = EventReader(), [], 0
    for cut in [*sorted(each for each in cuts if each < len(stream)), len(stream)]:
        found += reader.feed(stream[start:cut])
        start = cut
    assert found == datas
    assert reader.is_between


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        pytest.param(b": ping\n\ndata: x\n\n", [b"x"], id="comment"),
        pytest.param(b"event: a\nid: 1\ndata: x\n\n", [b"x"], id="named"),
        pytest.param(b"data:x\n\n", [b"x"], id="no space"),
        pytest.param(b"data: a\ndata: b\n\n", [b"a\nb"], id="two lines"),
        pytest.param(b"data: x\n", [], id="not whole yet"),
    ],
)
def test_fields(stream: bytes, expected: list[bytes]) -> None:
    assert EventReader().feed(stream) == expected


def test_an_event_without_end_is_an_error() -> None:
    reader = EventReader(max_event_bytes=10)
    with pytest.raises(EventTooLargeError):
        reader.feed(b"data: 12345678")


def test_written_events_are_read() -> None:
    assert EventReader().feed(event(b"{}") + event(b"[1]", "named")) == [b"{}", b"[1]"]

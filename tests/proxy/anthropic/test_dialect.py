from tests.proxy.anthropic.official import BODY

from headrace.proxy.anthropic import MESSAGES


def test_the_upstream_is_asked_for_a_chat() -> None:
    assert (MESSAGES.operation, MESSAGES.upstream_path) == ("chat", "/v1/chat/completions")


def test_whether_it_streams() -> None:
    assert not MESSAGES.open(BODY).is_stream
    assert not MESSAGES.open(BODY | {"stream": None}).is_stream
    assert MESSAGES.open(BODY | {"stream": True}).is_stream


def test_the_requests_id_has_their_name() -> None:
    assert MESSAGES.headers({"x-request-id": "r", "server": "uvicorn"}) == {"request-id": "r"}
    assert MESSAGES.headers({}) == {}


def test_when_to_try_again_is_told() -> None:
    assert MESSAGES.headers({"retry-after": "7"}) == {"retry-after": "7"}

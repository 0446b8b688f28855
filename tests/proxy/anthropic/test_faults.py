import anthropic
import orjson
import pytest
from tests.proxy.anthropic.official import create

from headrace.proxy.anthropic import MESSAGES
from headrace.proxy.problem import Problem


@pytest.mark.parametrize(
    ("status", "kind", "raised"),
    [
        (400, "invalid_request_error", anthropic.BadRequestError),
        (401, "authentication_error", anthropic.AuthenticationError),
        (402, "billing_error", anthropic.APIStatusError),
        (403, "permission_error", anthropic.PermissionDeniedError),
        (404, "not_found_error", anthropic.NotFoundError),
        (409, "conflict_error", anthropic.ConflictError),
        (413, "request_too_large", anthropic.APIStatusError),
        (422, "invalid_request_error", anthropic.UnprocessableEntityError),
        (429, "rate_limit_error", anthropic.RateLimitError),
        (500, "api_error", anthropic.InternalServerError),
        (502, "api_error", anthropic.InternalServerError),
        (503, "overloaded_error", anthropic.InternalServerError),
        (504, "timeout_error", anthropic.InternalServerError),
        (529, "overloaded_error", anthropic.InternalServerError),
    ],
)
def test_types_by_status(status: int, kind: str, raised: type[anthropic.APIStatusError]) -> None:
    body = MESSAGES.error(Problem(status, "so it is", "code"))
    assert orjson.loads(body) == {"type": "error", "error": {"type": kind, "message": "so it is"}}
    with pytest.raises(raised, match="so it is") as error:
        create(status, body)
    assert error.value.status_code == status


def test_the_wrong_member_is_named() -> None:
    body = MESSAGES.error(Problem(400, "a text is expected", "invalid_request", param="messages.0.content"))
    assert orjson.loads(body)["error"]["message"] == "messages.0.content: a text is expected"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(
            b'{"error":{"message":"too long","type":"BadRequestError","code":400}}', "too long", id="OpenAI's"
        ),
        pytest.param(b'{"type":"error","error":{"type":"api_error","message":"m"}}', "m", id="Anthropic's"),
        pytest.param(b'{"object":"error","message":"too long"}', "too long", id="older vLLM's"),
        pytest.param(b'{"error":"no such model"}', "no such model", id="a text"),
        pytest.param(b'{"detail":"Not Found"}', "Not Found", id="FastAPI's"),
        pytest.param(b'{"detail":[{"loc":["body"]}]}', '[{"loc":["body"]}]', id="FastAPI's list"),
        pytest.param(b'{"what":1}', '{"what":1}', id="any JSON"),
        pytest.param(b"Bad Gateway\n", "Bad Gateway", id="no JSON"),
        pytest.param(b"\xff", "\ufffd", id="no text"),
        pytest.param(b"x" * 5000, "x" * 2000, id="a long page"),
        pytest.param(b"", "the upstream answered 400 and said nothing", id="nothing"),
        pytest.param(b"null", "the upstream answered 400 and said nothing", id="null"),
    ],
)
def test_the_upstreams_words_are_kept(body: bytes, message: str) -> None:
    assert orjson.loads(MESSAGES.upstream_error(400, body)) == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": message},
    }

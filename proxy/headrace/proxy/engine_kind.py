"""EngineKind: what an upstream is, by what it answers. An error says nothing about that."""

from typing import Literal

import orjson

from headrace.proxy.settings import ProxySettings
from headrace.proxy.upstream import Upstream, UpstreamFailedError

EngineKind = Literal["managed", "vllm", "openai"]
"""vLLM with the endpoints that load weights; vLLM without them; anything else that speaks OpenAI's API."""

_SAYS_NOTHING = frozenset({401, 403, 408, 429})
"""Beside 5xx: of whoever stands before the engine, or of one that is not ready."""


async def ask_kind(url: str, settings: ProxySettings, upstream: Upstream) -> EngineKind:
    """UpstreamFailedError, with what to do, as long as it does not say; UpstreamTimeoutError."""
    if settings.upstream_kind == "openai":
        return "openai"
    if settings.upstream_kind == "vllm" and settings.weights is None:
        return "vllm"
    if await _has_weight_info(url, upstream):
        return "managed"
    if settings.upstream_kind == "vllm":
        return "vllm"
    return "vllm" if "vllm" in await _owners(url, upstream) else "openai"


async def _has_weight_info(url: str, upstream: Upstream) -> bool:
    async with upstream.get(f"{url}/weight_info", upstream.headers()) as response:
        if response.status >= 500 or response.status in _SAYS_NOTHING:
            raise _error("/weight_info", response.status)
        return response.status == 200 and b"weight_version" in await response.read()


async def _owners(url: str, upstream: Upstream) -> set[object]:
    """Of its models: vLLM says so there."""
    async with upstream.get(f"{url}/v1/models", upstream.headers()) as response:
        if response.status != 200:
            raise _error("/v1/models", response.status)
        body = await response.read()
    try:
        return {str(model.get("owned_by")) for model in orjson.loads(body)["data"]}
    except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError):
        raise UpstreamFailedError("its /v1/models is no list of models") from None


def _error(path: str, status: int) -> UpstreamFailedError:
    hint = ""
    if status in {401, 403}:
        hint = ": is HEADRACE_PROXY_UPSTREAM_API_KEY right?"
    elif status == 404:
        hint = ": --upstream-kind says what it is"
    return UpstreamFailedError(f"it answered {path} with {status}{hint}")

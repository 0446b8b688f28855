"""Fleet: the engines of the settings, each found out about once, and kept at the newest weights."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

import orjson
import structlog

from headrace.proxy.engines import Engine, Engines
from headrace.proxy.settings import ProxySettings
from headrace.proxy.upstream import Upstream, UpstreamFailedError, UpstreamTimeoutError
from headrace.proxy.vllm_admin import EngineError, VllmAdmin, admin_session
from headrace.proxy.weights import Versions, WeightsFollower, look_at_logprobs
from headrace.schemas.errors import FatalError

Kind = Literal["managed", "vllm", "openai"]
"""vLLM with the endpoints that load weights; vLLM without them; anything else that speaks OpenAI's API."""

_ASK_EVERY_S = 2.0
_ANSWER_S = 5.0

log = structlog.get_logger(__name__)


class Fleet(NamedTuple):
    engines: Engines
    weights: WeightsFollower


@asynccontextmanager
async def start_engines(
    settings: ProxySettings, upstream: Upstream, versions: Versions
) -> AsyncIterator[Fleet]:
    """They serve as they become ready. FatalError for what is no URL of an engine, or stands there twice."""
    urls = [base_url(url) for url in settings.upstreams]
    if len(set(urls)) < len(urls):
        raise FatalError("an upstream is given twice")
    kinds = await asyncio.gather(*(_kind_of(url, settings, upstream) for url in urls))
    engines = Engines(
        [_engine(url, kind) for url, kind in zip(urls, kinds, strict=True)],
        max_calls=settings.max_engine_calls,
        max_waiting=settings.max_calls,
        wait_s=settings.admission_timeout_s,
    )

    async with admin_session() as session:

        def admin(engine: Engine) -> VllmAdmin:
            return VllmAdmin(engine.name, engine.url, session, headers=upstream.headers())

        for engine in engines:
            if engine.gives_token_ids and not engine.is_managed:
                try:
                    await look_at_logprobs(engine, admin(engine))
                except EngineError as error:
                    log.warning("logprobs not looked at", engine=engine.name, reason=str(error))
        async with WeightsFollower(
            engines,
            versions,
            settings.weights,
            admin,
            drain_s=settings.drain_s,
            check_s=settings.check_s,
            retry_s=settings.retry_s,
        ) as weights:
            yield Fleet(engines, weights)


def base_url(url: str) -> str:
    """Without `/v1`; FatalError if it is none."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise FatalError(f"{url!r} is no URL of an engine: http://HOST:PORT is expected")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def _engine(url: str, kind: Kind) -> Engine:
    log.info("upstream", url=url, kind=kind)
    name = urlsplit(url).netloc.rpartition("@")[2] + urlsplit(url).path
    return Engine(name, url, is_managed=kind == "managed", gives_token_ids=kind != "openai")


async def _kind_of(url: str, settings: ProxySettings, upstream: Upstream) -> Kind:
    if settings.upstream_kind == "openai":
        return "openai"
    if settings.upstream_kind == "vllm" and settings.weights is None:
        return "vllm"
    deadline = asyncio.get_running_loop().time() + settings.startup_timeout_s
    while True:
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await _asked(url, settings, upstream)
        except (UpstreamFailedError, UpstreamTimeoutError, TimeoutError) as error:
            if asyncio.get_running_loop().time() > deadline:
                log.error("upstream does not answer; taken for vLLM", url=url, reason=str(error))  # noqa: TRY400
                return "managed"
            log.warning("waiting", what="upstream", url=url, reason=str(error))
        await asyncio.sleep(_ASK_EVERY_S)


async def _asked(url: str, settings: ProxySettings, upstream: Upstream) -> Kind:
    """By what it serves: vLLM says so of its models."""
    headers = upstream.headers()
    async with upstream.get(f"{url}/weight_info", headers) as response:
        if response.status == 200 and "weight_version" in await response.text():
            return "managed"
    if settings.upstream_kind == "vllm":
        return "vllm"
    async with upstream.get(f"{url}/v1/models", headers) as response:
        body = await response.read()
    try:
        owners = {model.get("owned_by") for model in orjson.loads(body)["data"]}
    except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError):
        owners = set()
    return "vllm" if "vllm" in owners else "openai"

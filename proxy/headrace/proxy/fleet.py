"""Fleet: the engines of the settings, each found out about in its own time, and kept at the newest weights.

Nobody waits for one that does not answer: it is out, with the reason, and is asked again.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

import structlog

from headrace.proxy.engine_kind import EngineKind, ask_kind
from headrace.proxy.engines import Engine, Engines
from headrace.proxy.settings import ProxySettings
from headrace.proxy.upstream import Upstream, UpstreamFailedError, UpstreamTimeoutError
from headrace.proxy.vllm_admin import EngineAdmin, EngineError, VllmAdmin, admin_session
from headrace.proxy.weights import Versions, WeightsFollower, look_at_logprobs
from headrace.schemas.errors import FatalError

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
    """They serve as they become ready. FatalError as `base_urls`."""
    engines = Engines(
        [
            Engine(urlsplit(url).netloc + urlsplit(url).path, url, is_managed=None)
            for url in base_urls(settings)
        ],
        max_calls=settings.max_engine_calls,
        max_waiting=settings.max_calls,
        wait_s=settings.admission_timeout_s,
    )
    async with admin_session() as session:

        def admin(engine: Engine) -> VllmAdmin:
            return VllmAdmin(engine.name, engine.url, session, headers=upstream.headers())

        async with WeightsFollower(
            engines,
            versions,
            settings.weights,
            admin,
            drain_s=settings.drain_s,
            check_s=settings.check_s,
            retry_s=settings.retry_s,
            max_gap=settings.max_gap,
        ) as weights:
            newcomers = _Newcomers(settings, upstream, engines, weights, admin)
            tasks = [asyncio.create_task(newcomers.take_in(engine)) for engine in engines]
            try:
                yield Fleet(engines, weights)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


def base_urls(settings: ProxySettings) -> list[str]:
    """Without `/v1`. FatalError for what is no URL of an engine, or is there twice; no secret is quoted."""
    urls = [_base_url(url, place) for place, url in enumerate(settings.upstreams, 1)]
    if len(set(urls)) < len(urls):
        raise FatalError("an upstream is given twice")
    return urls


def _base_url(url: str, place: int) -> str:
    # What is refused may have a key in it, anywhere.
    shown = f"upstream {place}" if not {"@", "?", "#"}.isdisjoint(url) else f"{url!r}"
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_one = False
    if not is_one or parts.query or parts.fragment:
        raise FatalError(f"{shown} is no URL of an engine: http://HOST:PORT is expected")
    if "@" in parts.netloc:
        raise FatalError(
            f"{shown} has a name or a password in it: HEADRACE_PROXY_UPSTREAM_API_KEY takes the engines' key"
        )
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


class _Newcomers:
    """Finds out what engines are, and lets them serve."""

    def __init__(
        self,
        settings: ProxySettings,
        upstream: Upstream,
        engines: Engines,
        weights: WeightsFollower,
        admin: Callable[[Engine], EngineAdmin],
    ) -> None:
        self._settings = settings
        self._upstream = upstream
        self._engines = engines
        self._weights = weights
        self._admin = admin

    async def take_in(self, engine: Engine) -> None:
        """Returns when all is known of it."""
        kind = await self._find_out(engine)
        self._engines.know(engine, is_managed=kind == "managed", gives_token_ids=kind != "openai")
        self._tell(engine, kind)
        if kind == "managed":
            self._weights.manage(engine)
        elif kind == "openai":
            self._engines.serve(engine, None)
        else:
            await self._look_at_logprobs(engine)

    async def _find_out(self, engine: Engine) -> EngineKind:
        while True:
            try:
                async with asyncio.timeout(_ANSWER_S):
                    return await ask_kind(engine.url, self._settings, self._upstream)
            except (UpstreamFailedError, UpstreamTimeoutError, TimeoutError) as error:
                reason = str(error) or "it does not answer"
            if engine.reason != reason:
                log.warning("waiting", what="upstream", url=engine.url, reason=reason)
                self._engines.take_out(engine, reason)
            await asyncio.sleep(_ASK_EVERY_S)

    def _tell(self, engine: Engine, kind: EngineKind) -> None:
        log.info("upstream", url=engine.url, kind=kind)
        is_expected = self._settings.weights is None or self._settings.upstream_kind == "openai"
        if kind == "managed" or is_expected:
            return
        why = "its calls can't be trained on" if kind == "openai" else "start it with VLLM_SERVER_DEV_MODE=1"
        log.warning(
            "new weights do not reach this upstream",
            url=engine.url,
            kind=kind,
            weights=self._settings.weights,
            why=why,
        )

    async def _look_at_logprobs(self, engine: Engine) -> None:
        """It serves after the first look, and till one has succeeded its calls are untrainable."""
        admin, said = self._admin(engine), False
        while True:
            try:
                await look_at_logprobs(engine, admin)
            except EngineError as error:
                if not said:
                    log.warning("logprobs not looked at", engine=engine.name, reason=str(error))
                    said = True
            if engine.state != "serving":
                self._engines.serve(engine, None)
            if engine.gives_sampled_logprobs is not None:
                return
            await asyncio.sleep(_ASK_EVERY_S)

"""Upstream: the HTTP client of the engines. Its errors are two: it failed, or it took too long."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Self

import aiohttp

from headrace.proxy.settings import ProxySettings

_KEEP_ALIVE_S = 3.0
"""vLLM closes idle connections after 5 s; a POST that meets a closing one is lost."""
_CHUNK_BYTES = 256 * 1024


class UpstreamFailedError(Exception):
    """It can't be reached, it broke off, or it did not speak as expected."""


class UpstreamGoneError(UpstreamFailedError):
    """Its connection: it may have died, and started anew with other weights."""


class UpstreamTimeoutError(Exception):
    """It was silent for too long."""


class Upstream:
    """An async context manager: one pool of connections."""

    def __init__(self, settings: ProxySettings) -> None:
        self._key = settings.upstream_api_key
        self._session: aiohttp.ClientSession | None = None
        connect_s = settings.connect_timeout_s
        self._whole_timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_s)
        self._stream_timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=connect_s, sock_read=settings.idle_timeout_s
        )

    @property
    def session(self) -> aiohttp.ClientSession:
        assert self._session is not None, "used outside its context"  # noqa: S101
        return self._session

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            timeout=self._stream_timeout,
            # Only what is set here goes upstream: nothing of the client's request is carried over.
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            read_bufsize=_CHUNK_BYTES,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()

    def headers(self, *, request_id: str = "", traceparent: str = "") -> dict[str, str]:
        headers = {"content-type": "application/json"}
        if self._key is not None:
            headers["authorization"] = f"Bearer {self._key.get_secret_value()}"
        if request_id:
            headers["x-request-id"] = request_id
        if traceparent:
            headers["traceparent"] = traceparent
        return headers

    @asynccontextmanager
    async def post(
        self, url: str, body: bytes, headers: Mapping[str, str], *, is_stream: bool = False
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer, to be read within. A connection that is left unread is closed, which ends the call.

        A stream that is silent for too long has failed; for any other answer its caller waits as he likes.
        """
        timeout = self._stream_timeout if is_stream else self._whole_timeout
        with _translated():
            async with self.session.post(
                url, data=body, headers=headers, allow_redirects=False, timeout=timeout
            ) as response:
                yield response

    @asynccontextmanager
    async def get(self, url: str, headers: Mapping[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        with _translated():
            async with self.session.get(url, headers=headers, allow_redirects=False) as response:
                yield response


class _translated:  # noqa: N801  a context manager, used as a function
    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            raise UpstreamGoneError("the upstream does not take connections") from error
        if isinstance(error, aiohttp.ServerTimeoutError | asyncio.TimeoutError):
            raise UpstreamTimeoutError("the upstream was silent for too long") from error
        if isinstance(error, aiohttp.ClientConnectorError):
            raise UpstreamGoneError("the upstream can't be reached") from error
        if isinstance(error, aiohttp.ClientError | ConnectionError):
            raise UpstreamGoneError("the upstream broke off") from error

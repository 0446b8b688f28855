"""ProxyClient: the proxy's attempt API over HTTP, on connections that are kept.

`next` is for agents' threads, the others are for the runner's event loop. Nothing is asked twice here.
"""

from collections.abc import Mapping
from typing import Protocol, Self

import httpx
from pydantic import SecretStr

from headrace.schemas.errors import FatalError

CLOSE_TIMEOUT_S = 30.0
"""For one request to close: longer than a proxy waits for Kafka before it says that it takes too long."""
_KEPT_S = 5.0
"""An idle connection; servers keep theirs longer, so that none is closed as a request leaves."""
_NUM_CONNECTIONS = 32
"""A `next` takes about a millisecond."""
_NUM_WAITING = 256
"""Attempts that are opened or closed at a time; closing waits for Kafka."""

NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
"""The proxy knows nothing of the request."""


class AttemptApi(Protocol):
    """httpx.HTTPError where no answer came; NOT_SENT where asking again is harmless."""

    @property
    def url(self) -> str:
        """Without a slash at its end."""

    async def open(self, body: Mapping[str, object]) -> httpx.Response: ...

    def next(self, attempt_id: str) -> httpx.Response: ...

    async def close(self, attempt_id: str) -> httpx.Response: ...


class ProxyClient:
    """An AttemptApi, and an async context manager."""

    def __init__(self, url: str, key: SecretStr | None, *, timeout_s: float) -> None:
        """FatalError for what is no URL. `timeout_s` is for one request but a close."""
        self.url = _checked(url)
        headers = {} if key is None else {"authorization": f"Bearer {key.get_secret_value()}"}
        context = httpx.create_ssl_context()
        self._timeout = httpx.Timeout(timeout_s, pool=None)
        self._close_timeout = httpx.Timeout(timeout_s, read=CLOSE_TIMEOUT_S, pool=None)
        self._threads = httpx.Client(
            headers=headers,
            verify=context,
            timeout=timeout_s,
            limits=_limits(_NUM_CONNECTIONS),
        )
        self._loop = httpx.AsyncClient(headers=headers, verify=context, limits=_limits(_NUM_WAITING))

    async def open(self, body: Mapping[str, object]) -> httpx.Response:
        return await self._loop.post(f"{self.url}/attempts", json=body, timeout=self._timeout)

    def next(self, attempt_id: str) -> httpx.Response:
        return self._threads.post(f"{self.url}/attempts/{attempt_id}/next")

    async def close(self, attempt_id: str) -> httpx.Response:
        return await self._loop.post(f"{self.url}/attempts/{attempt_id}/close", timeout=self._close_timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._loop.aclose()
        self._threads.close()


def _checked(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise FatalError(f"the proxy's URL is none: {error}") from error
    if parsed.scheme not in {"http", "https"} or not parsed.host or parsed.query or parsed.fragment:
        raise FatalError("the proxy's URL is none: http://HOST:PORT is expected")
    if parsed.userinfo:
        raise FatalError("no password in the proxy's URL: HEADRACE_RUNNER_PROXY_KEY takes the key")
    return url.rstrip("/")


def _limits(number: int) -> httpx.Limits:
    return httpx.Limits(max_connections=number, max_keepalive_connections=number, keepalive_expiry=_KEPT_S)

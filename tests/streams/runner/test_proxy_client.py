"""The proxy's URL."""

import asyncio

import pytest

from headrace.schemas.errors import FatalError
from headrace.streams.runner.proxy_client import ProxyClient


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8500",
        "localhost",
        "ftp://host",
        "http://",
        "http://host:port",
        "http://host?a=1",
        "http://name:secret@host",
    ],
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(FatalError, match="URL") as refused:
        ProxyClient(url, None, timeout_s=1)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8500", "http://127.0.0.1:8500"),
        ("https://host/headrace/", "https://host/headrace"),
    ],
)
def test_a_url_may_have_a_path(url: str, expected: str) -> None:
    async def main() -> None:
        async with ProxyClient(url, None, timeout_s=1) as client:
            assert client.url == expected

    asyncio.run(main())

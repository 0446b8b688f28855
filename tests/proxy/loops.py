"""Tests that are coroutines, and waiting in them."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


def run(test: Callable[[], Coroutine[Any, Any, None]], *, timeout_s: float = 5.0) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(timeout_s):
            await test()

    asyncio.run(bounded())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  many things make it true
        await asyncio.sleep(0)

"""Calls from any thread into a loop, each for itself."""

import asyncio
from typing import Any

from headrace.streams.runner.mailbox import Mailbox


async def test_calls_run_in_order_and_one_that_raises_holds_up_no_other() -> None:
    loop = asyncio.get_running_loop()
    told: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: told.append(context))
    mailbox, done = Mailbox(loop), asyncio.Event()
    heard: list[int] = []

    def fail() -> None:
        heard.append(2)
        raise ValueError("a callback's own fault")

    mailbox.post(lambda: heard.append(1))
    mailbox.post(fail)
    mailbox.post(lambda: heard.append(3))
    mailbox.post(done.set)
    async with asyncio.timeout(20):
        await done.wait()
    assert heard == [1, 2, 3]
    assert [type(context["exception"]) for context in told] == [ValueError]


async def test_what_is_posted_from_a_thread_runs_in_the_loop() -> None:
    mailbox, done = Mailbox(asyncio.get_running_loop()), asyncio.Event()
    await asyncio.to_thread(mailbox.post, done.set)
    async with asyncio.timeout(20):
        await done.wait()

"""An attempt in memory."""

from collections.abc import Iterator

import pytest
from tests.streams.runner.twins import MemoryOutlet, a_mailbox, an_attempt

from headrace.streams.runner.attempt import Attempt


@pytest.fixture
def outlet() -> MemoryOutlet:
    return MemoryOutlet()


@pytest.fixture
def attempt(outlet: MemoryOutlet) -> Iterator[Attempt]:
    with a_mailbox() as mailbox:
        yield an_attempt(outlet, mailbox)

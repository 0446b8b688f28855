"""Load: how many requests are taken at a time, those included whose body is still coming in."""

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.proxy.problem import Problem, RefusedError

_RETRY_AFTER_S = 1


class Load:
    def __init__(self, limit: int, what: str = "calls") -> None:
        """`what` they are, for `too_many_…` and for people."""
        self._limit = limit
        self._what = what
        self.running = 0

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """RefusedError 429 if there are as many as may be."""
        if self.running >= self._limit:
            message = f"{self.running} {self._what} are running, which is all"
            raise RefusedError(Problem(429, message, f"too_many_{self._what}", _RETRY_AFTER_S))
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1

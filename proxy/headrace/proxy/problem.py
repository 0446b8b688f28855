"""Problem: why a request is refused, before any API's words for it."""

from typing import NamedTuple

TOO_DEEP = "the request is nested too deeply"


class Problem(NamedTuple):
    """What the client is told; each dialect has its own shape for it."""

    status: int
    message: str
    """For people. Never quotes a prompt or a secret."""
    code: str
    """For programs, `kafka_unavailable` for one."""
    retry_after_s: int | None = None
    param: str | None = None
    """The member of the request that is wrong."""

    @property
    def is_clients_fault(self) -> bool:
        return 400 <= self.status < 500 and self.status != 429


class RefusedError(Exception):
    """Ends the handling of a request with this problem as its answer."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem
        self.body: bytes | None = None
        """In the words of another API than OpenAI's, where whoever answers does not know them."""


def bad_request(message: str, param: str | None = None) -> RefusedError:
    return RefusedError(Problem(400, message, "invalid_request", param=param))

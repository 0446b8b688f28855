"""Dialect: an API that agents speak, as a translation to and from what the upstream speaks.

Upstreams speak OpenAI's chat completions and completions. What is captured is captured there, before the
translation back, so that every dialect gives the same spans. Pure: no I/O, no clock but for what is passed.
"""

from collections.abc import Mapping
from typing import Any, Literal, Protocol

from headrace.proxy.problem import Problem

Json = dict[str, Any]


class Exchange(Protocol):
    """One call: its request in the upstream's words, and the answer in the client's.

    Either `answer` is called once, or, for a stream, `feed` for every chunk in order and then `finish` or
    `fail`. Chunks and answers come without what the client did not ask for. What they return is final bytes:
    a JSON body, or whole server-sent events; it may be empty.
    """

    request: Json
    """The upstream's body; the caller adds what capture needs."""
    is_stream: bool

    def answer(self, completion: Json) -> bytes: ...

    def feed(self, chunk: Json) -> bytes: ...

    def finish(self) -> bytes:
        """The upstream has ended its stream well."""

    def fail(self, problem: Problem) -> bytes:
        """Something broke after the stream had begun: end it so that the client's library raises."""


class Dialect(Protocol):
    name: str
    """For spans and metrics."""
    operation: Literal["chat", "text_completion"]
    """What the upstream is asked for: the form of its answers."""
    upstream_path: str

    def open(self, body: Json) -> Exchange:
        """RefusedError, of status 400 and with `param`, for what can't be put in the upstream's words."""

    def error(self, problem: Problem) -> bytes:
        """A JSON body in the shape that the API's libraries read."""

    def upstream_error(self, status: int, body: bytes) -> bytes:
        """The upstream's own error, as JSON: as it is where that is so already, else its words in ours."""

    def headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Of the answer, from the upstream's (lower-case): request ids, when to try again."""

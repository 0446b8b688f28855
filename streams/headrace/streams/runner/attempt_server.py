"""The URL of an attempt, for a command in whatever language: rewards and traces (attempt_requests).

`POST /a/{attempt_id}/rewards` and `POST /a/{attempt_id}/v1/traces`. Who knows an attempt's id may speak for
it: the server listens on loopback alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from headrace.streams.runner import otlp_receiver
from headrace.streams.runner.attempt_events import AttemptEvents
from headrace.streams.runner.attempt_requests import AttemptRequests
from headrace.streams.runner.http_message import RefusedError, Request, Response
from headrace.streams.runner.http_server import LOOPBACK, HttpServer


class AttemptServer:
    """An async context manager. Attempts are opened and closed from any thread."""

    def __init__(self) -> None:
        self._http = HttpServer(self._handle)
        self._open: dict[str, AttemptRequests] = {}

    @property
    def otlp_protocol(self) -> str:
        """The best that is understood here."""
        return "http/protobuf" if otlp_receiver.reads_protobuf() else "http/json"

    def url_of(self, attempt: AttemptEvents) -> str:
        return f"http://{LOOPBACK}:{self._http.port}/a/{attempt.attempt_id}"

    @contextmanager
    def open(self, attempt: AttemptEvents) -> Iterator[None]:
        """Take events for the attempt within."""
        self._open[attempt.attempt_id] = AttemptRequests(attempt)
        try:
            yield
        finally:
            del self._open[attempt.attempt_id]

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.__aexit__()

    async def _handle(self, request: Request) -> Response:
        empty, letter, attempt_id, *rest = [*request.path.split("/", 3), "", "", ""][:4]
        what = rest[0] if rest else ""
        if empty or letter != "a" or what not in {"rewards", "v1/traces"}:
            raise RefusedError(404, "there are /a/{attempt_id}/rewards and /a/{attempt_id}/v1/traces")
        if request.method != "POST":
            raise RefusedError(405, "POST is expected")
        opened = self._open.get(attempt_id)
        if opened is None:
            raise RefusedError(404, "no attempt of this id runs here")
        if what == "rewards":
            return await opened.reward(request.body)
        return await opened.traces(request.body, request.content_type)

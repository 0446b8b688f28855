"""The proxy's attempt API, in a few lines: with faults on order, and killed and restarted at will."""

import json
import socket
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from tests.streams.runner.scripted import CALL

from headrace.schemas.records import Span, now

KEY = "the-runner-s-key"


class Fault(NamedTuple):
    """In place of an answer."""

    status: int | None = None
    """None: the connection breaks."""
    retry_after: str | None = None
    body: str = "{}"
    happens: bool = False
    """What was asked for is done all the same."""


LOST = Fault(happens=True)
"""Done, and its answer lost."""


@dataclass
class FakeAttempt:
    rollout_id: str
    token: str
    last: int = 0
    is_closed: bool = False
    failure: str | None = None


@dataclass
class Answer:
    status: int
    body: dict[str, Any] = field(default_factory=dict)


class FakeProxy:
    def __init__(self, publish: Callable[[Span], None] | None = None) -> None:
        self.attempts: dict[str, FakeAttempt] = {}
        self.requests: list[tuple[str, Any]] = []
        """What was asked for, and the body or the attempt's id."""
        self.faults: dict[str, deque[Fault]] = defaultdict(deque)
        """The next ones, by what is asked for."""
        self.always: dict[str, Fault] = {}
        self.headers: list[str | None] = []
        """`Authorization`, of each request."""
        self.port = 0
        self._publish = publish
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def count(self, what: str) -> int:
        return sum(each[0] == what for each in self.requests)

    def start(self) -> None:
        self._server = _Server(("127.0.0.1", self.port), self)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def kill(self) -> None:
        """With all that it knows."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.cut()
            self._server.server_close()
            self._server = None
        self.attempts.clear()

    # --- what is asked for ---------------------------------------------------------------------------

    def answer(self, path: str, body: Any, authorization: str | None) -> Answer | Fault:
        parts = path.strip("/").split("/")
        attempt_id = parts[1] if len(parts) > 1 else ""
        what = "open" if parts == ["attempts"] else parts[-1]
        with self._lock:
            self.requests.append((what, body if what == "open" else attempt_id))
            self.headers.append(authorization)
            fault = self.faults[what].popleft() if self.faults[what] else self.always.get(what)
            if fault is not None and not fault.happens:
                return fault
            is_open = what == "open"
            answer = self._open(body) if is_open else self._of_attempt(what, attempt_id, authorization)
            return fault or answer

    def _open(self, body: Any) -> Answer:
        attempt_id = body["attempt_id"]
        if attempt_id in self.attempts:
            return Answer(409)
        token = f"token-{attempt_id}"
        self.attempts[attempt_id] = FakeAttempt(body["rollout_id"], token)
        return Answer(201, {"attempt_id": attempt_id, "path": f"/a/{attempt_id}", "token": token})

    def _of_attempt(self, what: str, attempt_id: str, authorization: str | None) -> Answer:
        attempt = self.attempts.get(attempt_id)
        if attempt is None:
            return Answer(404)
        if what == "close":
            attempt.is_closed = True
            return Answer(200, {"last_sequence_id": attempt.last, "failure": attempt.failure})
        if attempt.is_closed:
            return Answer(410)
        if what == "completions" and authorization != f"Bearer {attempt.token}":
            return Answer(401)
        attempt.last += 1
        if what == "completions" and self._publish is not None:
            self._publish(_call(attempt_id, attempt))
        return Answer(200, {"sequence_id": attempt.last})


def _call(attempt_id: str, attempt: FakeAttempt) -> Span:
    time = now()
    return Span(
        rollout_id=attempt.rollout_id,
        attempt_id=attempt_id,
        sequence_id=attempt.last,
        kind="client",
        trace_id=attempt_id.replace("-", ""),
        span_id=f"{attempt.last:016x}",
        name="chat",
        start_time=time,
        end_time=time,
        generation=CALL,
    )


class _Server(ThreadingHTTPServer):
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], proxy: FakeProxy) -> None:
        self.proxy = proxy
        self.connections: set[socket.socket] = set()
        super().__init__(address, _Handler)

    def cut(self) -> None:
        for connection in list(self.connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)

    def finish(self) -> None:
        self.server.connections.discard(self.connection)
        super().finish()

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(length) or b"null")
        answer = self.server.proxy.answer(self.path, body, self.headers.get("authorization"))
        if answer.status is None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        content = (answer.body if isinstance(answer, Fault) else json.dumps(answer.body)).encode()
        self.send_response(answer.status)
        self.send_header("content-length", str(len(content)))
        if isinstance(answer, Fault) and answer.retry_after is not None:
            self.send_header("retry-after", answer.retry_after)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@contextmanager
def a_fake_proxy(publish: Callable[[Span], None] | None = None) -> Iterator[FakeProxy]:
    proxy = FakeProxy(publish)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.kill()

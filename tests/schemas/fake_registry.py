"""A schema registry of a few lines: what confluent-kafka's client asks of one, and ways to fail."""

import json
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

Answer = tuple[int, object]


class FakeRegistry:
    """On loopback, on a free port, from `with` to its end."""

    fault: Callable[[], Answer] | None = None
    """When set, the answer to everything."""

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.requests: list[str] = []
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """From here on connections are refused. A second time it does nothing."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    def answer(self, method: str, path: str, body: bytes) -> Answer:
        with self._lock:
            self.requests.append(f"{method} {path.partition('?')[0]}")
            if self.fault is not None:
                return self.fault()
            parts = path.partition("?")[0].strip("/").split("/")
            match method, parts:
                case "POST", ["subjects", subject, "versions"]:
                    return HTTPStatus.OK, {"id": self.register(subject, json.loads(body))}
                case "GET", ["schemas", "ids", schema_id]:
                    if int(schema_id) in self.schemas:
                        return HTTPStatus.OK, self.schemas[int(schema_id)]
                    return HTTPStatus.NOT_FOUND, {"error_code": 40403, "message": "Schema not found"}
                case _:
                    return HTTPStatus.NOT_FOUND, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def register(self, subject: str, schema: dict[str, Any]) -> int:
        """The same schema has the same id under every subject."""
        known = [schema_id for schema_id, other in self.schemas.items() if other == schema]
        schema_id = known[0] if known else len(self.schemas) + 1
        self.schemas[schema_id] = schema
        ids = self.subjects.setdefault(subject, [])
        if schema_id not in ids:
            ids.append(schema_id)
        return schema_id

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._reply()

            def do_POST(self) -> None:
                self._reply()

            def _reply(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, payload = registry.answer(self.command, self.path, body)
                content = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  the base class says so
                pass

        return Handler

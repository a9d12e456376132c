"""A proxy for an S3 server that answers 503 SlowDown on demand."""

from __future__ import annotations

import contextlib
import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Iterator

SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class Overload:
    """State of the proxy. While `is_on` is set, every request is refused."""

    def __init__(self) -> None:
        self.is_on = threading.Event()
        self.refused = 0
        self.endpoint = ""


@contextlib.contextmanager
def overloadable(endpoint: str) -> Iterator[Overload]:
    """Runs a proxy for an endpoint on a free port."""
    overload, to = Overload(), endpoint.removeprefix("http://")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Headers and body are sent together.
        wbufsize = 1 << 16

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if overload.is_on.is_set():
                overload.refused += 1
                self.answer(503, {"Content-Type": "application/xml"}, SLOW_DOWN)
                return
            connection = http.client.HTTPConnection(to, timeout=60)
            with contextlib.closing(connection):
                connection.request(self.command, self.path, body, dict(self.headers))
                answer = connection.getresponse()
                self.answer(answer.status, dict(answer.getheaders()), answer.read())

        def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in ("connection", "transfer-encoding", "content-length", "date", "server"):
                    self.send_header(name, value)
            of_object = {name.lower(): value for name, value in headers.items()}.get("content-length", "0")
            self.send_header("Content-Length", of_object if self.command == "HEAD" and status != 503 else str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any

        def log_message(self, *_: object) -> None:
            pass

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    proxy.daemon_threads = True
    overload.endpoint = "http://127.0.0.1:%d" % proxy.server_port
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    try:
        yield overload
    finally:
        proxy.shutdown()
        proxy.server_close()

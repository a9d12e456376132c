"""HTTP requests to the server of this host and user, and its dashboard for a browser, which cannot open a Unix socket."""

from __future__ import annotations

import hmac
import http.client
import json
import secrets
import socket
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

# Time limit for the answer to a request. Live updates of the dashboard have none.
TIMEOUT_S = 30
COPY_BYTES = 64 << 10
# Headers that concern one connection, and the credentials of the dashboard.
NOT_FORWARDED = ("host", "connection", "cookie", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade")


class UnixConnection(http.client.HTTPConnection):
    """An HTTP connection over a Unix socket."""

    def __init__(self, path: Path, timeout: float | None = TIMEOUT_S) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connects to the socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def get(address: Path | str, resource: str, timeout: float = TIMEOUT_S) -> Any:
    """Returns the JSON of a resource of the server.

    Args:
        address: Its Unix socket, or its TCP address, such as `127.0.0.1:8816`.
        resource: Path of the resource.
        timeout: Maximum time in seconds without an answer.

    Raises:
        OSError: The server is not reachable, or it rejects the request.
    """
    connection: http.client.HTTPConnection
    if isinstance(address, Path):
        connection = UnixConnection(address, timeout)
    else:
        connection = http.client.HTTPConnection(address, timeout=timeout)
    try:
        connection.request("GET", resource)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise OSError(f"the server answered GET {resource} with status {answer.status}: {body.decode(errors='replace')}")
        return json.loads(body)
    except TimeoutError as error:
        raise OSError(f"the server did not answer GET {resource} within {timeout:.0f} s; it may be suspended or overloaded") from error
    except ConnectionError as error:
        if isinstance(address, Path):
            raise
        raise OSError(f"no server answers GET {resource} at http://{address}: {error}") from error
    except http.client.HTTPException as error:
        raise OSError(f"the server did not answer GET {resource}: {error!r}") from error
    finally:
        connection.close()


class Dashboard(ThreadingHTTPServer):
    """A server on a loopback port that passes the requests of one browser to a Unix socket.

    Every process of the host can connect to the port. A request therefore needs the token of `url`, which the browser keeps as a
    cookie.
    """

    daemon_threads = True

    def __init__(self, path: Path, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Forwarding)
        self.path, self.token = path, secrets.token_urlsafe(24)

    @property
    def url(self) -> str:
        """URL of the dashboard with its token."""
        return f"http://127.0.0.1:{self.server_port}/?token={self.token}"

    @property
    def cookie(self) -> str:
        """Name of the cookie. Browsers send the cookies of a host to all of its ports."""
        return f"forebay-{self.server_port}"


class _Forwarding(BaseHTTPRequestHandler):
    @property
    def dashboard(self) -> Dashboard:
        """The server that received the request."""
        assert isinstance(self.server, Dashboard)
        return self.server

    def do_GET(self) -> None:  # noqa: N802
        """Passes a request to the server, or exchanges the token of the URL for a cookie."""
        given = parse_qs(urlsplit(self.path).query).get("token", [""])[0]
        if self._is_token(given):
            self.send_response(303)
            self.send_header("Set-Cookie", f"{self.dashboard.cookie}={self.dashboard.token}; HttpOnly; SameSite=Strict; Path=/")
            self.send_header("Location", "/")
            self.send_header("Referrer-Policy", "no-referrer")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif self._is_token(self._cookie()):
            self._forward()
        else:
            self.send_error(403, "open the URL with the token that `python -m forebay dashboard` printed")

    do_HEAD = do_POST = do_PATCH = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: the URL has the token."""

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.dashboard.token.encode())

    def _cookie(self) -> str:
        try:
            found = SimpleCookie(self.headers.get("Cookie", "")).get(self.dashboard.cookie)
        except CookieError:
            return ""
        return "" if found is None else found.value

    def _forward(self) -> None:
        """Sends the request over the socket, and copies the answer until the server ends it."""
        headers = {name: value for name, value in self.headers.items() if name.lower() not in NOT_FORWARDED}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        connection = UnixConnection(self.dashboard.path, timeout=None)
        self.close_connection = True
        try:
            connection.request(self.command, self.path, body or None, headers)
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            self.send_error(502, f"the server of this host is not reachable: {error}")
            connection.close()
            return
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in NOT_FORWARDED:
                self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            while part := answer.read1(COPY_BYTES):
                self.wfile.write(part)
                self.wfile.flush()
        except OSError:
            # The browser has closed the page.
            pass
        finally:
            connection.close()

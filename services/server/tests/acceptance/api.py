"""The HTTP API through Python's own client: requests with any header, and server-sent events."""

from __future__ import annotations

import http.client
import json
import time
from dataclasses import dataclass
from typing import Any, Iterator

from server import Server

TIMEOUT_S = 60


@dataclass
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return self.json["error"]


def bearer(token: str | None) -> dict[str, str]:
    return {"authorization": f"Bearer token-of-{token}"} if token else {}


def ask(server: Server, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
    """Sends a request. Header names use underscores. For an event stream, the answer has no body."""
    connection = http.client.HTTPConnection(server.http, timeout=TIMEOUT_S)
    try:
        connection.putrequest(method, path, skip_host="host" in headers)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            named["content-length"] = str(len(body))
        for name, value in named.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        response = connection.getresponse()
        is_stream = response.headers.get_content_type() == "text/event-stream"
        return Answer(response.status, response.headers, b"" if is_stream else response.read())
    finally:
        connection.close()


def get(server: Server, path: str, token: str | None = None) -> Any:
    answer = ask(server, "GET", path, **bearer(token))
    assert answer.status == 200, answer.body
    return answer.json


def tune(server: Server, change: dict[str, Any], token: str | None = None, query: str = "", **headers: str) -> Answer:
    headers = {"content_type": "application/json", **headers, **bearer(token)}
    return ask(server, "PATCH", f"/api/v1/queues/ranker{query}", json.dumps(change).encode(), **headers)


@dataclass
class Message:
    kind: str
    id: int
    data: Any
    at: float


class Listener:
    """A connection to `/api/v1/live`."""

    def __init__(self, server: Server, token: str | None = None, **headers: str) -> None:
        self.connection = http.client.HTTPConnection(server.http, timeout=TIMEOUT_S)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.request("GET", "/api/v1/live", headers={**named, **bearer(token)})
        self.response = self.connection.getresponse()
        self.status = self.response.status

    def messages(self) -> Iterator[Message]:
        """Yields messages until the server ends the stream."""
        fields: dict[str, str] = {}
        while line := self.response.readline():
            text = line.decode().rstrip("\n")
            if text:
                name, _, value = text.partition(": ")
                fields[name] = value
            elif fields:
                yield Message(fields["event"], int(fields["id"]), json.loads(fields["data"]), time.monotonic())
                fields = {}

    def of(self, kind: str) -> Iterator[Message]:
        return (message for message in self.messages() if message.kind == kind)

    def close(self) -> None:
        # Closing only the connection would leave the response open for reading.
        self.response.close()
        self.connection.close()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

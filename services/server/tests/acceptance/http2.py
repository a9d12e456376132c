"""A minimal client of HTTP/2, whose flow control and whose frames a test controls. Responses are not decoded."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_STREAM, END_HEADERS, ACK = 1, 4, 1
INITIAL_WINDOW_SIZE = 4


def prefixed(message: bytes) -> bytes:
    """A gRPC message."""
    return b"\0" + struct.pack(">I", len(message)) + message


def _literal(text: bytes) -> bytes:
    """A string of HPACK without Huffman coding."""
    length = len(text)
    if length < 127:
        return bytes([length]) + text
    encoded, rest = [127], length - 127
    while rest >= 128:
        encoded.append(rest % 128 + 128)
        rest //= 128
    return bytes([*encoded, rest]) + text


class Http2:
    """One connection. `window` is the number of bytes of each response that the server may send."""

    def __init__(self, address: str, window: int, token: str | None = None) -> None:
        host, port = address.split(":")
        self.address, self.token = address, token
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.sending = threading.Lock()
        self.next = 1
        # Bytes of the responses, and the streams that the server has ended.
        self.received = 0
        self.answered: set[int] = set()
        self.ended: set[int] = set()
        self.is_closed = threading.Event()
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self._send(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, window))
        threading.Thread(target=self._receive, daemon=True).start()

    def _send(self, kind: int, flags: int, stream: int, payload: bytes = b"") -> None:
        head = struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream)
        with self.sending:
            self.socket.sendall(head + payload)

    def _exactly(self, size: int) -> bytes:
        some = b""
        while len(some) < size:
            part = self.socket.recv(size - len(some))
            if not part:
                raise ConnectionError("closed")
            some += part
        return some

    def _receive(self) -> None:
        try:
            while True:
                head = self._exactly(9)
                size, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
                stream = int.from_bytes(head[5:], "big")
                payload = self._exactly(size)
                if kind == SETTINGS and not flags & ACK:
                    self._send(SETTINGS, ACK, 0)
                elif kind == PING and not flags & ACK:
                    self._send(PING, ACK, 0, payload)
                elif kind == DATA:
                    self.received += size
                elif kind == HEADERS:
                    self.answered.add(stream)
                if kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & END_STREAM):
                    self.ended.add(stream)
        except OSError:
            self.is_closed.set()

    def request(self, method: str, path: str, body: bytes = b"", ends: bool = True, **headers: str) -> int:
        """Sends a request, without its end if `ends` is false. Returns the number of its stream."""
        stream, self.next = self.next, self.next + 2
        names = {":method": method, ":scheme": "http", ":path": path, ":authority": self.address}
        if self.token:
            names["authorization"] = f"Bearer {self.token}"
        names.update({name.replace("_", "-"): value for name, value in headers.items()})
        block = b"".join(b"\x10" + _literal(name.encode()) + _literal(value.encode()) for name, value in names.items())
        self._send(HEADERS, END_HEADERS | (END_STREAM if ends and not body else 0), stream, block)
        for at in range(0, len(body), 16384):
            is_last = at + 16384 >= len(body)
            self._send(DATA, END_STREAM if ends and is_last else 0, stream, body[at : at + 16384])
        return stream

    def call(self, method: str, body: bytes, ends: bool = True) -> int:
        """Calls a gRPC method with these bytes."""
        return self.request("POST", f"/{method}", body, ends, content_type="application/grpc", te="trailers")

    def close(self) -> None:
        # The other thread waits for data, which delays the end of `close` alone.
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

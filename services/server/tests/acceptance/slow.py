"""TCP proxies that add latency, limit the bandwidth, or hold requests back."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Iterator

CHUNK = 16 << 10


@contextlib.contextmanager
def slow_way(to: str, delay: float = 0.0, bytes_per_second: float | None = None) -> Iterator[str]:
    """Yields HOST:PORT of a proxy for `to`. Requests take `delay` seconds longer; all answers share `bytes_per_second`."""
    host, port = to.rsplit(":", 1)
    listener = socket.create_server(("127.0.0.1", 0))
    narrow = _Narrow(bytes_per_second) if bytes_per_second else None

    def accept() -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            far = socket.create_connection((host, int(port)))
            for one in (near, far):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if narrow:
                # A small buffer, so that the limit takes effect at once.
                far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, CHUNK)
            for source, sink, pause, limit in ((near, far, delay, None), (far, near, 0.0, narrow)):
                threading.Thread(target=_copy, args=(source, sink, pause, limit), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield "127.0.0.1:%d" % listener.getsockname()[1]
    finally:
        listener.close()


class Gate:
    """A way to a server that can be closed. Requests are held back while it is closed."""

    def __init__(self, to: str) -> None:
        self._to, self._open = to, threading.Event()
        self._open.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self._listener.getsockname()[1]
        # Set when a request is held back.
        self.holds = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def _accept(self) -> None:
        host, port = self._to.rsplit(":", 1)
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection((host, int(port)))
                threading.Thread(target=self._forward, args=(near, far), daemon=True).start()
                threading.Thread(target=_copy, args=(far, near, 0.0, None), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                if not self._open.is_set():
                    self.holds.set()
                    self._open.wait()
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


class _Narrow:
    def __init__(self, bytes_per_second: float) -> None:
        self._rate, self._lock, self._free_at = bytes_per_second, threading.Lock(), time.monotonic()

    def take(self, count: int) -> None:
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic()) + count / self._rate
            until = self._free_at
        time.sleep(max(0.0, until - time.monotonic()))


def _copy(source: socket.socket, sink: socket.socket, pause: float, narrow: _Narrow | None) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK):
            if narrow:
                narrow.take(len(data))
            if pause:
                time.sleep(pause)
            sink.sendall(data)
    for one in (source, sink):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)

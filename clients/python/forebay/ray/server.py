"""Actors of a tier: one for each server, and one that knows the addresses of all."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Mapping, Sequence

import ray

from forebay.address import free_port, host_port, split
from forebay.binary import binary
from forebay.errors import ServerStartError
from forebay.folders import private, temporary_folder

GUARD = Path(__file__).parent / "guard.py"
MAX_LOG_SIZE = "16MiB"
RETRY_PAUSE_S = 1.0
# Messages of a server whose port or cache folder is used by another one: the last server of a killed actor finishes its streams.
TRANSIENT = ("in use", "is used by another server")
# Interval at which a server tells its address and asks for those of the others.
UPDATE_S = 2.0
# Lines of the log that are part of an exception.
LOG_TAIL_LINES = 12


class Coordinator:
    """Knows the addresses of the servers of a tier. After a restart, it learns them again from the servers."""

    def __init__(self, servers: int, scheme: str) -> None:
        self._scheme = scheme
        self._addresses: list[str | None] = [None] * servers

    def register(self, number: int, address: str) -> list[str]:
        """Sets the address of a server, and returns those of all servers that have one."""
        self._addresses[number] = address
        return self.addresses()

    def size(self) -> int:
        """Returns the number of servers of the tier."""
        return len(self._addresses)

    def scheme(self) -> str:
        """Returns the scheme of the URLs of the servers."""
        return self._scheme

    def addresses(self) -> list[str]:
        """Returns the addresses in the order of the numbers of their servers."""
        return [address for address in self._addresses if address is not None]


class ServerActor:
    """Runs a server. The actor ends when its server ends, so that Ray starts both again."""

    def __init__(
        self, tier: str, number: int, coordinator: str, flags: Sequence[str], cache_dir: str | None, port: int, start_timeout: float
    ) -> None:
        """Starts the server, and blocks until it accepts connections.

        Raises:
            ServerStartError: The server does not start. The message contains that of the server.
        """
        self._number, self._namespace, self._coordinator_name = number, tier, coordinator
        parent = Path(cache_dir) if cache_dir else temporary_folder("cache_dir of the tier")
        parent.mkdir(parents=True, exist_ok=True)
        self._folder = private(parent / f"{tier}-{number}")
        self._stops = False
        host = ray.util.get_node_ip_address()
        started = time.monotonic()
        while True:
            # Another program may have taken the port in the meantime.
            keeps_port = time.monotonic() < started + start_timeout / 2
            own_port = (keeps_port and self._last_port(host)) or free_port(host)
            self._address = host_port(host, port or own_port)
            self._write_members([self._address])
            try:
                self._process = self._start(flags, start_timeout)
                break
            except ServerStartError as error:
                if time.monotonic() > started + start_timeout or not any(word in str(error) for word in TRANSIENT):
                    raise
                time.sleep(RETRY_PAUSE_S)
        # A restart in between must not read a part of the address.
        scratch = self._folder / "address.new"
        scratch.write_text(self._address)
        scratch.replace(self._folder / "address")
        threading.Thread(target=self._await_end, daemon=True).start()
        threading.Thread(target=self._keep_updated, daemon=True).start()

    def address(self) -> str:
        """Returns HOST:PORT of the server."""
        return self._address

    def pids(self) -> list[int]:
        """Returns the process ids of the actor and of its server."""
        return [os.getpid(), self._server_pid]

    def update(self) -> list[str]:
        """Tells the coordinator the address, writes the members into the file of the server, and returns them."""
        coordinator = ray.get_actor(self._coordinator_name, namespace=self._namespace)
        members = ray.get(coordinator.register.remote(self._number, self._address))
        self._write_members(members)
        return members

    def stop(self) -> None:
        """Stops the server, and blocks until its streams have ended or its grace period is over."""
        self._stops = True
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _last_port(self, host: str) -> int:
        """Returns the port of the last server of this folder, because it is a part of its name, or 0 if there was none."""
        try:
            last_host, last_port = split((self._folder / "address").read_text())
        except OSError:
            return 0
        return int(last_port) if last_host == host and last_port.isdecimal() else 0

    def _start(self, flags: Sequence[str], timeout: float) -> subprocess.Popen[bytes]:
        host, _ = split(self._address)
        command = [binary(), "serve", "--grpc", self._address, "--http", host_port(host, 0), "--advertise", self._address]
        command += ["--members", f"file:{self._folder / 'members'}", "--cache-dir", str(self._folder / "cache")]
        command += ["--max-log-size", MAX_LOG_SIZE, *flags]
        with open(self._folder / "server.log", "ab") as log:
            begin = log.tell()
            process = subprocess.Popen(
                [sys.executable, "-I", str(GUARD), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        line = _first_line(process, timeout)
        if not line:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(RETRY_PAUSE_S)
            except subprocess.TimeoutExpired:
                # The server is a child of the process, in the same group.
                os.killpg(process.pid, signal.SIGKILL)
            raise ServerStartError(f"the server at {self._address} does not start: {self._log_since(begin)}")
        self._server_pid = json.loads(line)["pid"]
        return process

    def _log_since(self, begin: int) -> str:
        with open(self._folder / "server.log", "rb") as log:
            log.seek(begin)
            return "\n".join(log.read().decode(errors="replace").splitlines()[-LOG_TAIL_LINES:])

    def _write_members(self, members: Sequence[str]) -> None:
        text = "".join(f"{member}\n" for member in members)
        path = self._folder / "members"
        if path.exists() and path.read_text() == text:
            return
        scratch = self._folder / f"members.{threading.get_ident()}"
        scratch.write_text(text)
        scratch.replace(path)

    def _await_end(self) -> None:
        status = self._process.wait()
        if not self._stops:
            print(f"forebay: the server at {self._address} ended with status {status}", file=sys.stderr, flush=True)
            os._exit(1)

    def _keep_updated(self) -> None:
        while not self._stops:
            try:
                self.update()
            except (ray.exceptions.RayError, ValueError) as error:
                # The coordinator is being started, here or for the first time.
                print(f"forebay: the members are not updated: {error}", file=sys.stderr, flush=True)
            time.sleep(UPDATE_S)


def _first_line(process: subprocess.Popen[bytes], timeout: float) -> bytes:
    """Returns the first line of the output of a process, or nothing if it ends or the time is over before."""
    assert process.stdout is not None
    output, deadline, line = process.stdout.fileno(), time.monotonic() + timeout, b""
    while not line.endswith(b"\n"):
        if not select.select([output], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return b""
        if not (read := os.read(output, 4096)):
            return b""
        line += read
    return line


def flags_of(settings: Mapping[str, Any]) -> list[str]:
    """Returns the flags of `forebay serve` for settings. True is a flag without a value."""
    flags = []
    for name, value in settings.items():
        if value is not False:
            flags.append(f"--{name.replace('_', '-')}")
        if not isinstance(value, bool):
            flags.append(str(value))
    return flags

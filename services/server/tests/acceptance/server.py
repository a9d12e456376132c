"""Starts, observes and stops `forebay serve` processes."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Mapping

ROOT = Path(__file__).resolve().parents[4]
START_TIMEOUT_S = 60
EXIT_TIMEOUT_S = 45
LOG_TAIL_LINES = 60


class StartError(Exception):
    """The server exited or timed out before it was ready. Carries the exit status and the log."""

    def __init__(self, reason: str, exit_status: int | None, log: str) -> None:
        super().__init__(f"{reason} (exit status {exit_status})\n{log}")
        self.exit_status = exit_status
        self.log = log


def binary() -> Path:
    path = Path(os.environ.get("FOREBAY_BIN", ROOT / "target" / "release" / "forebay"))
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: run `cargo build --release`, or set FOREBAY_BIN")
    return path


def forebay(
    *arguments: str | Path, env: Mapping[str, str] | None = None, timeout: float = 120
) -> subprocess.CompletedProcess:
    """Runs a `forebay` command to completion, without standard input."""
    return subprocess.run(
        [str(binary()), *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **(env or {})},
    )


def until(
    done: Callable[[], bool], seconds: float = 60, failure: str | Callable[[], str] = "condition not met in time"
) -> None:
    """Waits until `done` returns true. Fails after `seconds` with `failure`, or with what it returns."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, failure() if callable(failure) else failure
        time.sleep(0.01)


def replace(path: Path, text: str) -> Path:
    """Replaces a file atomically, so that a server that watches it never reads half of it."""
    path.with_suffix(".new").write_text(text)
    return path.with_suffix(".new").replace(path)


@dataclass
class Server:
    """A running server. It selects its ports and prints them when it accepts connections."""

    process: subprocess.Popen
    cache_dir: Path
    log_path: Path
    grpc: str = ""
    http: str = ""
    # TLS settings of the clients. None: the server does not use TLS.
    tls: ssl.SSLContext | None = None

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def location(self) -> str:
        return f"grpc+tls://{self.grpc}" if self.tls else f"grpc://{self.grpc}"

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def log_tail(self) -> str:
        return "\n".join(self.log().splitlines()[-LOG_TAIL_LINES:])

    def is_running(self) -> bool:
        return self.process.poll() is None

    def http_get(self, path: str, timeout: float = 60, **headers: str) -> tuple[int, str]:
        """Returns status and body. Status 0 denotes a refused connection."""
        scheme = "https" if self.tls else "http"
        request = urllib.request.Request(f"{scheme}://{self.http}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=timeout, context=self.tls) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(errors="replace")
        except OSError:
            return 0, ""

    def memory_bytes(self, entry: str = "VmRSS") -> int:
        """Returns the resident memory, or its peak for the entry `VmHWM`."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{entry}:"):
                return int(line.split()[1]) * 1024
        raise LookupError(f"no {entry} for process {self.pid}")

    def forget_peak_memory(self) -> None:
        """Resets `VmHWM` to the current value."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def terminate(self) -> None:
        """Sends SIGTERM and returns at once."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self, timeout: float = EXIT_TIMEOUT_S) -> int:
        return self.process.wait(timeout)

    def stop(self) -> int:
        self.terminate()
        return self.wait()

    def kill(self) -> None:
        """Sends SIGKILL and waits for the exit."""
        self.process.kill()
        self.process.wait()

    def await_ready(self, ready_file: Path, becomes_ready: bool = True) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if not self.is_running():
                raise StartError("the server exited before it was ready", self.process.returncode, self.log())
            if not self.grpc:
                first, newline, _ = ready_file.read_text().partition("\n")
                if newline:
                    ready = json.loads(first)
                    self.grpc, self.http = ready["grpc"], ready["http"]
                    assert ready["pid"] == self.pid
            elif not becomes_ready or self.http_get("/readyz")[0] == 200:
                return
            time.sleep(0.01)
        raise StartError(f"not ready within {START_TIMEOUT_S} s", None, self.log())


@dataclass
class Pool:
    """Servers with the lifetime of a fixture. `close` kills those that still run."""

    folder: Path
    servers: list[Server] = field(default_factory=list)

    def start(
        self,
        datasets: Mapping[str, str | Path],
        *,
        cache_dir: Path | None = None,
        env: Mapping[str, str] | None = None,
        grpc: str = "127.0.0.1:0",
        preexec: Callable[[], None] | None = None,
        program: Path | None = None,
        tls: ssl.SSLContext | None = None,
        becomes_ready: bool = True,
        **flags: object,
    ) -> Server:
        """Starts a server and waits until it is ready, or listens if it does not become ready. `cpu_threads=1` is `--cpu-threads 1`. `preexec` runs in the
        new process before the server does. `program` is the path of another binary than that of `binary`."""
        number = len(self.servers)
        cache_dir = cache_dir or self.folder / f"cache-{number}"
        ready_file, log_path = self.folder / f"ready-{number}.json", self.folder / f"server-{number}.log"
        command = [
            str(program or binary()),
            "serve",
            "--cache-dir",
            str(cache_dir),
            "--grpc",
            grpc,
            "--http",
            "127.0.0.1:0",
        ]
        for name, url in datasets.items():
            command += ["--dataset", f"{name}={url}"]
        for name, value in flags.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        with ready_file.open("w") as ready, log_path.open("w") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=ready,
                stderr=log,
                env={**os.environ, **(env or {})},
                preexec_fn=preexec,
            )
        server = Server(process, cache_dir, log_path, tls=tls)
        self.servers.append(server)
        RUNNING.append(server)
        server.await_ready(ready_file, becomes_ready)
        return server

    def close(self) -> None:
        for server in self.servers:
            if server.is_running():
                server.kill()
            RUNNING.remove(server)


# Every server of every open pool. A failed test shows their logs.
RUNNING: list[Server] = []

"""Processes of servers: their start, the reason why one has ended, and whether one still exists."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

from forebay.errors import ServerStartError

LOG = logging.getLogger("forebay")

# Maximum time until a server that was started accepts connections.
START_TIMEOUT_S = 120
POLL_S = 0.01
# Time after which a start that is not complete is logged.
SILENCE_S = 3
# Maximum time until a server ends that no client uses yet, and until a process ends that was killed.
END_TIMEOUT_S = 10
# Lines of the log that are part of an exception.
LOG_TAIL_LINES = 12


def launch(command: Sequence[str], environment: Mapping[str, str], log_path: Path, is_ready: Callable[[], bool]) -> subprocess.Popen[bytes]:
    """Runs the command of a server in the root folder, and waits until it accepts connections.

    Args:
        command: Path of the binary, and its arguments.
        environment: Environment of the server.
        log_path: File to which its log is appended.
        is_ready: Function that returns true if the server accepts connections.

    Returns:
        The process.

    Raises:
        OSError: The log cannot be written.
        ServerStartError: The server does not start. The message has that of the server.
    """
    for process in _started:
        process.poll()
    with open(log_path, "ab", opener=_owner_only) as log:
        begin = log.tell()
        try:
            # The server has its own session, so that Ctrl-C and the end of this process do not stop it.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd="/",
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise ServerStartError(f"the server does not start: {error}") from error
    _started.append(process)
    begun = time.monotonic()
    deadline, is_reported = begun + START_TIMEOUT_S, False
    while not is_ready():
        if not is_reported and time.monotonic() - begun > SILENCE_S:
            LOG.warning("waiting for the server to start, process %s; its log is %s", process.pid, log_path)
            is_reported = True
        if process.poll() is not None:
            raise ServerStartError(f"the server does not start: {_reason(process.returncode, log_path, begin)}")
        if time.monotonic() > deadline:
            _kill(process)
            found = _log_since(log_path, begin)[0] or f"its log, {log_path}, has no message"
            raise ServerStartError(f"the server was not ready within {START_TIMEOUT_S} s: {found}")
        time.sleep(POLL_S)
    return process


def end(process: subprocess.Popen[Any]) -> None:
    """Ends a server that no client uses yet. Waits for a limited time."""
    process.terminate()
    try:
        process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        _kill(process)


def has_ended(pid: int) -> bool:
    """Returns true if there is no such process, or if it has ended without being waited for. The latter is known on Linux only."""
    try:
        # The name of the program, in parentheses, may contain spaces.
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return not _exists(pid)
    return state in ("Z", "X")


def _exists(pid: int) -> bool:
    """Returns true if a process of this user has the id. It may have ended without being waited for."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _kill(process: subprocess.Popen[Any]) -> None:
    process.kill()
    # A process that waits for a disk does not end at once.
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_TIMEOUT_S)


def _reason(code: int, log_path: Path, begin: int) -> str:
    """Returns why a server has ended: the message that it has logged after position `begin`, or its exit status or signal."""
    log, is_message = _log_since(log_path, begin)
    if is_message:
        return log
    ended = f"the process ended with exit status {code}" if code >= 0 else f"the process was ended by {_signal(-code)}"
    hint = ", as when the memory of the host or the container is exhausted" if code == -signal.SIGKILL else ""
    rest = f": {log}" if log else ", before it logged anything"
    return f"{ended}{hint}; its log is {log_path}{rest}"


def _log_since(log_path: Path, begin: int) -> tuple[str, bool]:
    """Returns the last lines of the log after position `begin`, and true if they are the message of a failed start."""
    with open(log_path, "rb") as log:
        log.seek(begin)
        lines = log.read().decode(errors="replace").splitlines()
    # The message of a failed start is last.
    starts = [number for number, line in enumerate(lines) if line.startswith(("forebay: ", "error: "))]
    return "\n".join(lines[starts[-1] :] if starts else lines[-LOG_TAIL_LINES:]).strip(), bool(starts)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _owner_only(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


# Servers that this process has started. They are kept, because they are waited for when they end.
_started: list[subprocess.Popen[bytes]] = []

"""Trainings of several processes that are killed all at once."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from pathlib import Path
from typing import Callable

# Set in every process of a training, because launchers start their processes in other groups and sessions.
MARK = "FOREBAY_TEST_TRAINING"


class Launched:
    """The processes of one training, and what the first one and its children print."""

    def __init__(self, *commands: list[str], **variables: str) -> None:
        self.mark, self.output = uuid.uuid4().hex, list[str]()
        env = {**os.environ, "OMP_NUM_THREADS": "1", **variables, MARK: self.mark}
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": env}
        self.processes = [subprocess.Popen(command, **options) for command in commands]

    def lines_until(self, start: str) -> list[str]:
        """Waits for a line that begins with `start`, then kills all processes at once, and returns the lines of steps."""
        stdout = self.processes[0].stdout
        assert stdout is not None
        for line in stdout:
            self.output.append(line)
            if line.startswith(start):
                break
        self.kill()
        self.output += stdout.readlines()
        return self.steps()

    def all_lines(self, timeout: float = 250) -> list[str]:
        """Waits for the end of the training, and returns the lines of steps."""
        try:
            self.output += self.processes[0].communicate(timeout=timeout)[0].splitlines()
            statuses = [process.wait(timeout=60) for process in self.processes]
        finally:
            self.kill()
        assert not any(statuses), "\n".join(self.output[-60:])
        return self.steps()

    def steps(self) -> list[str]:
        """Returns the lines of steps. Libraries print lines of their own."""
        return [line.rstrip() for line in self.output if line.startswith("epoch ")]

    def check_ranks(self, number: int) -> None:
        """Checks that the dataset was used by a number of ranks, as its log says."""
        output = "\n".join(self.output)
        assert f"RANK=0 of {number}, from" in output, output[-6000:]

    def is_running(self) -> bool:
        """True until the first process has ended."""
        return self.processes[0].poll() is None

    def kill(self) -> None:
        """Kills the processes, and all that they have started."""
        while found := self._running():
            for process in found:
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.01)
        for launched in self.processes:
            launched.wait()

    def _running(self) -> list[int]:
        entry, found = f"{MARK}={self.mark}".encode(), []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                # A process that has ended and was not waited for has no environment.
                if entry in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                pass
        return found


def killed_before(end: str, at: str, launch: Callable[[Path], Launched], folder: Path) -> tuple[Launched, Path]:
    """Launches a training with a new folder in `folder`, and kills it after a line that begins with `at`.

    On a busy machine, the training may print a line that begins with `end` before it is killed. It is then launched again, with
    another folder.

    Returns:
        The training that was killed, and its folder.
    """
    for attempt in range(5):
        path = folder / f"killed-{attempt}"
        path.mkdir()
        killed = launch(path)
        killed.lines_until(at)
        if not any(line.startswith(end) for line in killed.output):
            return killed, path
    raise AssertionError(f"each training printed '{end}' before it was killed")


def check_resumed(whole: list[str], first: list[str], resumed: list[str], repeated: int) -> None:
    """Checks that a killed and a resumed training read the same sequence of rows as a whole one.

    Args:
        whole: Lines of steps of an uninterrupted training.
        first: Those of the training that was killed.
        resumed: Those of the one that resumed.
        repeated: Most steps of the killed training that are after its last checkpoint.
    """
    assert len(set(whole)) == len(whole) > len(first) > 0
    assert first == whole[: len(first)]
    assert resumed and resumed == whole[-len(resumed) :]
    # A process that is killed between a checkpoint and its line does not print that line.
    assert -repeated <= len(whole) - len(resumed) - len(first) <= 1

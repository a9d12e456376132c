"""Loops over DataLoaders: what their worker processes and the main process know together."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from multiprocessing.context import get_spawning_popen
from typing import Any, Iterator

from forebay.shared import SharedFile


class LoaderLoops:
    """The plan and the current loop of a training dataset, shared by a process and the workers of its DataLoaders.

    The entry of a process is a dict with `planned`, the plan that all its workers use; `loop`, the number of the last loop, or
    None after the process itself has moved; `epoch` and `step`, the start of that loop or the position of the process;
    `is_fresh`, true if the next loop continues at the position of the process instead of the next epoch; `has_ended`, true if
    the loop is behind the last epoch; and `end_is_logged`, true if a worker has logged this.

    Other copies of a dataset share nothing: a pickled one, unless it is an argument of a new process.
    """

    def __init__(self, file: SharedFile | None = None) -> None:
        self._file = SharedFile() if file is None else file

    def __reduce__(self) -> tuple[Any, ...]:
        return LoaderLoops, (() if get_spawning_popen() is None else (self._file,))

    @contextlib.contextmanager
    def entry(self, process: int) -> Iterator[dict[str, Any]]:
        """Locks the entries of all processes, and yields the entry of one, whose changes are kept."""
        descriptor = self._file.descriptor
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
        try:
            written = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
            entries = json.loads(written) if written else {}
            entry = entries.setdefault(str(process), {})
            yield entry
            changed = json.dumps(entries).encode()
            if changed != written:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, changed, 0)
        finally:
            fcntl.lockf(descriptor, fcntl.LOCK_UN)

"""Progress of what a training loop waits for: the counting of rows before its first batch, and the windows that are loaded."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Mapping, Optional

LOG = logging.getLogger("forebay")

POLL_S = 0.5
# Times after which a wait is logged, first and again.
FIRST_LOG_S, LOG_INTERVAL_S = 3.0, 30.0

ReadLoad = Callable[[], Optional[Mapping[str, Any]]]


class LoadingShown:
    """Shows what the server loads while a loop waits for it: in the bar, and in the log after 3 s and every 30 s.

    It has a thread from the start to the end of its context. The loop calls `begin` and `end` around each wait.
    """

    def __init__(self, dataset: str, read: ReadLoad, bar: Any) -> None:
        """Args:
            dataset: Name of the dataset.
            read: Returns the server's last WindowLoad; None while there is none. Called on another thread.
            bar: Bar of tqdm, or None.
        """
        self._dataset, self._read, self._bar = dataset, read, bar
        # Start of the current wait, and of the last one that was shown.
        self._since: float | None = None
        self._shown: float | None = None
        self._next_log, self._is_first = 0.0, True
        self._has_ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="forebay-loading", daemon=True)

    def __enter__(self) -> LoadingShown:
        self._watcher.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._has_ended.set()
        self._watcher.join()

    def begin(self) -> None:
        """Called before a wait."""
        self._since = time.monotonic()

    def end(self) -> None:
        """Called after a wait."""
        self._since, self._is_first = None, False

    def _watch(self) -> None:
        while not self._has_ended.wait(POLL_S):
            self._show()
        self._clear()

    def _show(self) -> None:
        since = self._since
        load = None if since is None else self._read()
        if load is None or since is None:
            self._clear()
            return
        if self._shown != since:
            self._shown, self._next_log = since, since + FIRST_LOG_S
        text = described(load, self._is_first)
        if self._bar is not None:
            self._bar.set_postfix_str(text)
        if time.monotonic() >= self._next_log:
            self._next_log = time.monotonic() + LOG_INTERVAL_S
            LOG.warning("'%s': %s", self._dataset, text)

    def _clear(self) -> None:
        if self._shown is not None and self._bar is not None:
            self._bar.set_postfix_str("")
        self._shown = None


@contextmanager
def shown_while_counting(dataset: str, has_bar: bool) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Yields a function that shows the progress of counting rows: in a bar, and in the log at once and every 30 s.

    Args:
        dataset: Name of the dataset.
        has_bar: Shows a bar of tqdm, which is closed when the context ends.
    """
    bar: Any = None
    next_log = 0.0

    def show(counted: Mapping[str, Any]) -> None:
        nonlocal bar, next_log
        done, kept = int(counted.get("blocks_done", 0)), kept_share(counted)
        if has_bar:
            if bar is None:
                from tqdm.auto import tqdm

                bar = tqdm(total=int(counted.get("blocks", 0)), desc="counting rows", unit="block", leave=False)
            bar.update(done - bar.n)
            bar.set_postfix_str(kept)
        if time.monotonic() >= next_log:
            next_log = time.monotonic() + LOG_INTERVAL_S
            LOG.warning("'%s': counting rows: %s of %s blocks, %s", dataset, done, counted.get("blocks", 0), kept)

    try:
        yield show
    finally:
        if bar is not None:
            bar.close()


def kept_share(counted: Mapping[str, Any]) -> str:
    """Returns the share of the counted rows that the filter keeps as a text."""
    rows, kept = int(counted.get("rows", 0)), int(counted.get("rows_kept", 0))
    return "no rows yet" if rows == 0 else f"{kept / rows:.0%} of the rows match"


def described(load: Mapping[str, Any], is_first: bool = True) -> str:
    """Returns the progress of a window as a text."""
    window = "the first window" if is_first else "the next window"
    if load.get("waits_for_memory"):
        return f"{window} waits for memory that other streams use"
    return f"loading {window}: {load.get('blocks_done', 0)} of {load.get('blocks', 0)} blocks"

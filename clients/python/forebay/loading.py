"""Progress of what a training loop waits for before its first batch: the counting of rows, and the first window."""

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


@contextmanager
def shown_while_loading(dataset: str, read: ReadLoad, bar: Any) -> Iterator[None]:
    """Shows the progress of the first window until the context ends: in the bar, and in the log after 3 s and every 30 s.

    Args:
        dataset: Name of the dataset.
        read: Returns the server's last WindowLoad; None while there is none. Called on another thread.
        bar: Bar of tqdm, or None.
    """
    has_ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(dataset, read, bar, has_ended), name="forebay-loading", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        has_ended.set()
        watcher.join()
        if bar is not None:
            bar.set_postfix_str("")


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


def described(load: Mapping[str, Any]) -> str:
    """Returns the progress of a window as a text."""
    if load.get("waits_for_memory"):
        return "the first window waits for memory that other streams use"
    return f"loading the first window: {load.get('blocks_done', 0)} of {load.get('blocks', 0)} blocks"


def _watch(dataset: str, read: ReadLoad, bar: Any, has_ended: threading.Event) -> None:
    next_log = time.monotonic() + FIRST_LOG_S
    while not has_ended.wait(POLL_S):
        load = read()
        if load is None:
            continue
        text = described(load)
        if bar is not None:
            bar.set_postfix_str(text)
        if time.monotonic() >= next_log:
            next_log = time.monotonic() + LOG_INTERVAL_S
            LOG.warning("'%s': %s", dataset, text)

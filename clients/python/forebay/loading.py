"""Progress of the first window, for which a training loop waits."""

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

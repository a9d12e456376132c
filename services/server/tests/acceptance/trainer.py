"""A trainer over stock pyarrow that reports how long it computes and waits."""

from __future__ import annotations

import json
import secrets
import threading
import time
from typing import Any

import pyarrow.flight as flight

REPORT_INTERVAL_S = 1.0


class Trainer:
    """Reads the batches of one request, rank and lane, and computes for `compute` seconds after each batch."""

    def __init__(self, location: str, train: dict[str, Any], compute: float, reports: bool = True) -> None:
        self._location, self._train, self._compute, self._reports = location, train, compute, reports
        self._id = secrets.randbits(63) | 1
        self._lock = threading.Lock()
        self._waits, self._since = True, time.monotonic()
        # Seconds, without the activity in progress.
        self._waited = self._computed = 0.0
        self._ended: tuple[float, float] | None = None
        self._stop = threading.Event()
        self.steps = 0

    @property
    def waited(self) -> float:
        return self._so_far()[0]

    @property
    def computed(self) -> float:
        return self._so_far()[1]

    def stop(self) -> None:
        self._stop.set()

    def run(self, steps: int | None = None) -> Trainer:
        """Trains for `steps` steps, to the end of the stream, or until `stop`."""
        client = flight.connect(self._location)
        info = client.get_flight_info(flight.FlightDescriptor.for_command(json.dumps({"train": self._train}).encode()))
        options = flight.FlightCallOptions(headers=[(b"forebay-trainer", f"{self._id:016x}".encode())])
        # The request for the plan is not part of the stream's time.
        with self._lock:
            self._since = time.monotonic()
        reporter = threading.Thread(target=self._report, daemon=True)
        if self._reports:
            reporter.start()
        reader = client.do_get(info.endpoints[0].ticket, options)
        while (steps is None or self.steps < steps) and not self._stop.is_set():
            try:
                reader.read_chunk()
            except StopIteration:
                break
            self._turn(waits=False)
            time.sleep(self._compute)
            self._turn(waits=True)
            self.steps += 1
        reader.cancel()
        self._ended = self._so_far()
        self._stop.set()
        if self._reports:
            reporter.join()
        client.close()
        return self

    def _turn(self, waits: bool) -> None:
        with self._lock:
            now = time.monotonic()
            if self._waits:
                self._waited += now - self._since
            else:
                self._computed += now - self._since
            self._waits, self._since = waits, now

    def _so_far(self) -> tuple[float, float]:
        if self._ended is not None:
            return self._ended
        with self._lock:
            in_progress = time.monotonic() - self._since
            return self._waited + in_progress * self._waits, self._computed + in_progress * (not self._waits)

    def _report(self) -> None:
        client = flight.connect(self._location)
        before, since, steps = self._so_far(), time.monotonic(), self.steps
        while not self._stop.wait(REPORT_INTERVAL_S):
            now, so_far = time.monotonic(), self._so_far()
            report = {
                "dataset": self._train["dataset"],
                "trainer": str(self._id),
                "seconds": now - since,
                "wait_seconds": so_far[0] - before[0],
                "compute_seconds": so_far[1] - before[1],
                "steps": self.steps - steps,
            }
            before, since, steps = so_far, now, self.steps
            list(client.do_action(flight.Action("report", json.dumps(report).encode())))
        client.close()

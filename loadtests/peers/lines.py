"""The protocol of `src/ask.rs`: a line of JSON for each request and each answer."""

from __future__ import annotations

import json
import sys
from typing import Callable


def say(line: dict) -> None:
    print(json.dumps(line), flush=True)


def answer_all(run: Callable[[str, float | None], dict]) -> None:
    """Answers every run that is asked for until the input ends."""
    say({"ready": True})
    for line in sys.stdin:
        ask = json.loads(line)
        try:
            say(run(ask["ticket"], ask["compute_ms"]))
        except Exception as error:
            say({"error": f"{type(error).__name__}: {error}"})


def serve(server) -> None:
    """Says where a Flight server listens, and ends with the input."""
    say({"ready": True, "url": f"grpc://127.0.0.1:{server.port}"})
    sys.stdin.read()

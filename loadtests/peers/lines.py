"""The protocol of `src/protocol.rs`: one line of JSON per request and answer."""

from __future__ import annotations

import json
import sys
from typing import Callable


def say(line: dict) -> None:
    print(json.dumps(line), flush=True)


def answer_all(run: Callable[..., dict]) -> None:
    """Performs all requested runs until standard input ends. The fields of a request are the arguments of `run`."""
    say({"ready": True})
    for line in sys.stdin:
        try:
            say(run(**json.loads(line)))
        except Exception as error:
            say({"error": f"{type(error).__name__}: {error}"})


def serve(server) -> None:
    """Prints the address of a Flight server and waits until standard input ends."""
    say({"ready": True, "url": f"grpc://127.0.0.1:{server.port}"})
    sys.stdin.read()

"""Ray, which is not in the environments of the checkers. Without this file, they would take forebay.ray for it."""

from typing import Any

def __getattr__(name: str) -> Any: ...

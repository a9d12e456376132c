"""PyTorch, which is not in all environments in which the types of the package are checked."""

from typing import Any

def __getattr__(name: str) -> Any: ...

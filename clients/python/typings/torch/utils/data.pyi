from typing import Any, Generic, TypeVar

Item = TypeVar("Item", covariant=True)

class IterableDataset(Generic[Item]): ...

def __getattr__(name: str) -> Any: ...

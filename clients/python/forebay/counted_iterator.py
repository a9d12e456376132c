"""Iterators over the items of several epochs, whose number is known."""

from __future__ import annotations

from typing import Callable, Generator, Generic, TypeVar

Item = TypeVar("Item")


class CountedIterator(Generic[Item]):
    """The items of an iteration, with a `len`.

    It is the number of items from the start to the end of the iteration, also while it runs.
    """

    def __init__(self, items: Generator[Item, None, None], rest: Callable[[], int]) -> None:
        self._items, self._rest, self._delivered = items, rest, 0

    def __iter__(self) -> CountedIterator[Item]:
        return self

    def __next__(self) -> Item:
        item = next(self._items)
        self._delivered += 1
        return item

    def __len__(self) -> int:
        """Number of items of the whole iteration. Blocks at the first use."""
        return self._delivered + self._rest()

    def __bool__(self) -> bool:
        # Python would call `__len__`, which blocks.
        return True

    def close(self) -> None:
        """Ends the iteration, as `close` of a generator."""
        self._items.close()

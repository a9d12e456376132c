"""The partitions of the specification (docs/reference/protocol.md#order), written a second time."""

from __future__ import annotations


def partitions(sizes: list[int], count: int) -> list[list[tuple[int, int, int]]]:
    """Deals the blocks and levels: the (block, first item, end) of each partition."""
    dealt: list[list[tuple[int, int, int]]] = [[] for _ in range(count)]
    for block, size in enumerate(sizes):
        sums = [sum(end - first for _, first, end in own) for own in dealt]
        dealt[sums.index(min(sums))].append((block, 0, size))
    total = sum(sizes)
    shares = [(k + 1) * total // count - k * total // count for k in range(count)]
    lacking = [share - sum(end - first for _, first, end in own) for share, own in zip(shares, dealt)]
    given: list[list[int]] = []
    for own, lack in zip(dealt, lacking):
        if lack < 0:
            block, first, end = own.pop()
            given.append([block, end + lack, end])
            own.extend([(block, first, end + lack)] if end + lack > first else [])
    for own, lack in zip(dealt, lacking):
        while lack > 0:
            block, first, end = given[0]
            taken = min(lack, end - first)
            own.append((block, end - taken, end))
            given[0][2] -= taken
            lack -= taken
            if given[0][1] == given[0][2]:
                given.pop(0)
        own.sort()
    return dealt

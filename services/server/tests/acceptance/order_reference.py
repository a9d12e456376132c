"""The order of the specification (docs/reference/protocol.md#order), written a second time: blocks of ids to global batches.

Also groups, packs and mixtures, and the distinct rows of a batch (docs/how-to/views.md#dedupe-send-repeated-values-once).
"""

from __future__ import annotations

import math
import struct
from typing import Hashable, Iterator, Sequence

import numpy as np
import xxhash

MASK = (1 << 64) - 1
BLOCKS, ROWS = 0, 1


def words(state: int) -> Iterator[int]:
    """splitmix64."""
    while True:
        state = (state + 0x9E3779B97F4A7C15) & MASK
        word = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & MASK
        word = (word ^ (word >> 27)) * 0x94D049BB133111EB & MASK
        yield word ^ (word >> 31)


def permutation(n: int, seed: int, epoch: int, level: int, window: int) -> np.ndarray:
    """The images of 0..n: a Feistel network on a grid of ceil(sqrt(n)) rows, with cycle walking."""
    key = xxhash.xxh3_64_intdigest(b"forebay/plan/key" + struct.pack("<IIQQQ", 1, level, seed, epoch, window))
    source = words(key)
    swap = next(source) & 1 if n >= 2 else 0
    rows = max(math.isqrt(n - 1) + 1 if n > 0 else 1, 1)
    columns = max(-(-n // rows), 1)
    keys = [next(source) for _ in range(32 if n < 64 * 64 else 12)]

    def fold(word: np.ndarray, multiplier: int) -> np.ndarray:
        product = word * np.uint64(multiplier)
        return (product ^ (product >> np.uint64(32))) & np.uint64(0xFFFFFFFF)

    def function(half: np.ndarray, key: int, size: int) -> np.ndarray:
        hashed = fold(half ^ np.uint64(key & 0xFFFFFFFF), 0x9E3779B1) ^ np.uint64(key >> 32)
        return (fold(hashed, 0x85EBCA77) * np.uint64(size)) >> np.uint64(32)

    def encrypted(cells: np.ndarray) -> np.ndarray:
        row, column = np.divmod(cells, np.uint64(columns))
        for of_row, of_column in zip(keys[::2], keys[1::2]):
            row = (row + function(column, of_row, rows)) % np.uint64(rows)
            column = (column + function(row, of_column, columns)) % np.uint64(columns)
        return row * np.uint64(columns) + column

    images = encrypted(np.arange(n, dtype=np.uint64))
    while (outside := images >= n).any():
        images[outside] = encrypted(images[outside])
    images[images < 2] ^= np.uint64(swap)
    return images.astype(np.int64)


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


def epoch_order(blocks: list[np.ndarray], count: int, shuffle: dict, seed: int, epoch: int) -> list[np.ndarray]:
    """The ids of each partition, in the order of the epoch."""
    orders = []
    for k, own in enumerate(partitions([len(block) for block in blocks], count)):
        at = range(len(own)) if shuffle.get("keep_block_order") else permutation(len(own), seed, epoch, BLOCKS, k << 32)
        parts = [blocks[own[i][0]][own[i][1] : own[i][2]] for i in at]
        least = -(-shuffle["window_rows"] // count) if "window_rows" in shuffle else 1 << 62
        windows: list[list[np.ndarray]] = [[]]
        for part in parts:
            windows[-1].append(part)
            if sum(map(len, windows[-1])) >= least:
                windows.append([])
        if len(windows) > 1:
            # A smaller remainder joins the previous window.
            windows[-2].extend(windows.pop())
        rows = [np.concatenate(window) if window else np.empty(0, np.int64) for window in windows]
        orders.append(np.concatenate([w[permutation(len(w), seed, epoch, ROWS, k << 32 | i)] for i, w in enumerate(rows)]))
    return orders


def steps(orders: list[np.ndarray], batch_size: int, world_size: int, remainder: str) -> list[list[np.ndarray]]:
    """The ids of each rank, for each step."""
    count, total, global_batch = len(orders), sum(map(len, orders)), batch_size * world_size
    result = []
    for start in range(0, total, global_batch):
        rows = min(global_batch, total - start)
        if rows < global_batch and remainder == "DROP":
            break
        taken = [(k * rows // count, (k + 1) * rows // count) for k in range(count)]
        before = start // count
        batch = np.concatenate([order[before : before + end - first] for order, (first, end) in zip(orders, taken)])
        result.append([batch[r * rows // world_size : (r + 1) * rows // world_size] for r in range(world_size)])
    return result


def groups(keys: Sequence[Hashable], blocks: list[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The ids of each group, and the numbers of the groups that begin in each block. `keys` are those of all ids. A group is a
    run of equal keys in the order of the blocks, and can end in a later block."""
    found: list[list[int]] = []
    begun: list[list[int]] = [[] for _ in blocks]
    previous: Hashable = object()
    for number, block in enumerate(blocks):
        for row in block.tolist():
            if keys[row] != previous:
                begun[number].append(len(found))
                found.append([])
            found[-1].append(row)
            previous = keys[row]
    return [np.array(group) for group in found], [np.array(numbers, np.int64) for numbers in begun]


def of_groups(shuffle: dict, rows: int, count: int) -> dict:
    """The shuffle of an order of `count` groups with `rows` rows: `window_rows` is scaled by the mean rows per group."""
    return {**shuffle, "window_rows": -(-shuffle["window_rows"] * count // rows)} if "window_rows" in shuffle else shuffle


def packs(order: np.ndarray, found: list[np.ndarray], max_pack_rows: int) -> list[list[int]]:
    """The groups of each pack, for the groups of an epoch in their order."""
    rows, longest = sum(map(len, found)), max(map(len, found))
    count = -(-rows // (max_pack_rows - longest + 1))
    packed: list[list[int]] = [[] for _ in range(count)]
    before = 0
    for group in order.tolist():
        packed[before * count // rows].append(group)
        before += len(found[group])
    return packed


def mixture(
    own: list[np.ndarray], others: list[list[np.ndarray]], sizes: list[int], world_size: int, shuffle: dict, seed: int, epochs: int
) -> list[list[list[np.ndarray]]]:
    """The ids of each rank, for each step of each epoch. `sizes` are the rows of each dataset in a batch, its own first."""
    seeds = [xxhash.xxh3_64_intdigest(f"mix {index} of {seed}".encode()) for index in range(len(others))]
    per_step = [size * world_size for size in sizes]
    count = sum(map(len, own)) // per_step[0]
    taken = []
    for blocks, seed_of, size, rows in zip([own, *others], [seed, *seeds], per_step, [0, *(sum(map(len, each)) for each in others)]):
        # An epoch has the same number of steps for all datasets. The other datasets repeat on their own.
        repeats = range(-(-epochs * count * size // rows) if rows else epochs)
        orders = [epoch_order(blocks, 1, shuffle, seed_of, epoch)[0] for epoch in repeats]
        orders = orders if rows else [order[: count * size] for order in orders]
        taken.append(np.concatenate(orders)[: epochs * count * size].reshape(epochs, count, world_size, -1))
    rounds = math.gcd(*sizes)
    parts = [each.reshape(epochs, count, world_size, rounds, -1) for each in taken]
    batches = np.concatenate(parts, axis=4).reshape(epochs, count, world_size, -1)
    return [[list(ranks) for ranks in steps_of] for steps_of in batches]


def distinct(rows: Sequence[Hashable]) -> tuple[list[Hashable], list[int]]:
    """The distinct rows of a batch in the order of their first occurrence, and for each row the number of its distinct row."""
    numbers: dict[Hashable, int] = {}
    index = [numbers.setdefault(row, len(numbers)) for row in rows]
    return list(numbers), index

"""The order of the specification (docs/reference/protocol.md#order), written a second time: blocks of ids to global batches."""

from __future__ import annotations

import math
import struct
from typing import Iterator

import numpy as np
import xxhash

from partition_reference import partitions

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

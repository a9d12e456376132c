"""Smaller expressions with the same kind of difference."""

from __future__ import annotations

import dataclasses
from typing import Callable, Iterator

from differential.expressions import Node
from differential.judge import Difference

MAX_TRIES = 30


def size(node: Node) -> int:
    return sum(1 for _ in node.parts())


def smaller(node: Node) -> Iterator[Node]:
    """Yields expressions with one part less: an operand in place of an operation, here or further inside."""
    for each in node.args:
        if each.op != "literal" and each.op != "column":
            yield each
    for position, each in enumerate(node.args):
        for inside in each.args:
            if inside.family == each.family:
                yield replaced(node, position, inside)
    if node.op in ("IN", "NOT IN") and len(node.args) > 2:
        for position in range(1, len(node.args)):
            yield dataclasses.replace(node, args=node.args[:position] + node.args[position + 1 :])
    for position, each in enumerate(node.args):
        for part in smaller(each):
            if part.family == each.family:
                yield replaced(node, position, part)


def replaced(node: Node, position: int, part: Node) -> Node:
    return dataclasses.replace(node, args=(*node.args[:position], part, *node.args[position + 1 :]))


def shrunk(node: Node, found: Difference, judge: Callable[[Node], Difference | None]) -> tuple[Node, Difference]:
    """Returns the smallest expression that was found to differ in the same way, and its difference."""
    tries = 0
    while True:
        for candidate in sorted(smaller(node), key=size):
            tries += 1
            if tries > MAX_TRIES:
                return node, found
            again = judge(candidate)
            if again and again.what == found.what:
                node, found = candidate, again
                break
        else:
            return node, found

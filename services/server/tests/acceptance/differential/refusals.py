"""Valid requests that the server refuses so far, by the message of the refusal. A value is never excused, only an error.

The list is to become empty: an entry without a hit over 10,000 cases is removed together with its cause.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Refusal:
    """A known refusal.

    Attributes:
        what: Requests that are refused.
        message: Regular expression of the server's message.
    """

    what: str
    message: str


KNOWN = [
    Refusal(
        "comparisons of timestamps or dates of different units, with values outside of the years 1677 to 2262",
        r"Cannot cast (Timestamp|Date)\S* .*to Timestamp.*representable i64 range|Overflow converting .* to Nanosecond",
    ),
    Refusal(
        "comparisons of TIME columns in milliseconds or microseconds with TIME literals",
        r"Cannot infer common argument type for comparison operation .*Time(32|64)",
    ),
]


@dataclass
class Refusals:
    """Counts the hits of each known refusal."""

    hits: list[int] = field(default_factory=lambda: [0] * len(KNOWN))

    def knows(self, message: str) -> bool:
        for number, refusal in enumerate(KNOWN):
            if re.search(refusal.message, message, re.DOTALL):
                self.hits[number] += 1
                return True
        return False

    def add(self, other: Refusals) -> None:
        self.hits = [one + more for one, more in zip(self.hits, other.hits)]

    def __str__(self) -> str:
        lines = [f"{hits:7} hits  {refusal.what}" for hits, refusal in zip(self.hits, KNOWN)]
        return "\n".join(["valid requests that are refused:", *lines])

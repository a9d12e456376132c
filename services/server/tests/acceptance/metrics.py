"""Metrics as documented in docs/reference/metrics.md and as exposed by a server, read with the Prometheus parser."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from server import ROOT, Server

PARTS = ("_bucket", "_sum", "_count")


@dataclass
class Documented:
    """A metric as documented."""

    kind: str
    labels: frozenset[str]
    absent: str
    # By label; `None` if the page describes the values instead of listing them.
    values: dict[str, frozenset[str] | None] = field(default_factory=dict)
    buckets: tuple[float, ...] = ()


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@lru_cache(maxsize=1)
def documented() -> dict[str, Documented]:
    found: dict[str, Documented] = {}
    section = ""
    for line in (ROOT / "docs" / "reference" / "metrics.md").read_text().splitlines():
        if line.startswith("## "):
            section = line[3:]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| `"):
            continue
        if section == "Labels":
            key, names = quoted(cells[0])[0], quoted(cells[1])
            # The meaning of a value follows it in parentheses.
            values = re.sub(r" \([^()]*\)", "", cells[2])
            listed = re.fullmatch(r"`[^`]+`(, `[^`]+`)*", values)
            for name in names:
                found[name].values[key] = frozenset(quoted(values)) if listed else None
        elif section == "Histogram buckets":
            for name in quoted(cells[0]):
                found[name].buckets = tuple(map(float, cells[1].split(", ")))
        else:
            name, kind, labels, _what, absent = cells
            kind = kind.partition(",")[0]
            found[quoted(name)[0]] = Documented(kind, frozenset(quoted(labels)), absent)
    assert len(found) > 60, "cannot parse docs/reference/metrics.md"
    return found


@dataclass(frozen=True)
class Sample:
    """One line of a scrape. `name` is the name of the metric, `part` the suffix of a histogram series."""

    name: str
    part: str
    labels: tuple[tuple[str, str], ...]
    value: float


@dataclass
class Scrape:
    kinds: dict[str, str]
    samples: list[Sample]

    def names(self) -> set[str]:
        return {sample.name for sample in self.samples}

    def series(self) -> set[Any]:
        return {(sample.name, sample.part, sample.labels) for sample in self.samples}

    def value(self, name: str, part: str = "", **labels: str) -> float:
        """Returns the sum over the samples with these labels, or 0 without samples."""
        found = [
            sample.value
            for sample in self.samples
            if (sample.name, sample.part) == (name, part) and labels.items() <= dict(sample.labels).items()
        ]
        return sum(found)


def parse(text: str) -> Scrape:
    kinds: dict[str, str] = {}
    samples: list[Sample] = []
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            part = next((p for p in PARTS if family.type == "histogram" and sample.name.endswith(p)), "")
            name = sample.name.removesuffix(part) if part else sample.name
            assert kinds.setdefault(name, family.type) == family.type
            samples.append(Sample(name, part, tuple(sorted(sample.labels.items())), sample.value))
    return Scrape(kinds, samples)


def scrape(server: Server) -> Scrape:
    status, text = server.http_get("/metrics")
    assert status == 200, text
    return parse(text)

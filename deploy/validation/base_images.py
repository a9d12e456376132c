#!/usr/bin/env python3
"""Checks that every base image of deploy/Dockerfile is pinned by its digest, as a released image requires. Needs no packages.

A tag of an image can be moved: without a digest, a second build of a release may contain another compiler or libc. Local builds may
follow the tags.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

DOCKERFILE = Path(__file__).resolve().parents[1] / "Dockerfile"


def unpinned(text: str) -> list[str]:
    """Returns a fault for each FROM of a Dockerfile without the digest of its image. Stages of the file itself need none."""
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", text, re.M))
    images = [image for image in re.findall(r"^FROM (\S+)", text, re.M) if image not in stages]
    return [
        f"Dockerfile: FROM {image} has no digest; append @sha256:..., see RELEASING.md"
        for image in images
        if not re.search(r"@sha256:[0-9a-f]{64}$", image)
    ]


if __name__ == "__main__":
    faults = unpinned(DOCKERFILE.read_text())
    print("\n".join(faults) or "all base images are pinned")
    sys.exit(1 if faults else 0)

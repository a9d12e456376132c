"""Ray: a datasource of Ray Data, and a tier of servers that runs on the nodes of a Ray cluster."""

from forebay.ray.source import Source
from forebay.ray.tier import Tier

__all__ = ["Source", "Tier"]

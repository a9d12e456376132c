"""The version of the package and of the server that is installed with it."""

from __future__ import annotations

__version__ = "0.1.0"

"""HTML that notebooks show."""

from __future__ import annotations

import html
from typing import Mapping


def described(text: str, columns: Mapping[str, str] | None = None) -> str:
    """Returns a text, and a table of columns and their types if they are given."""
    shown = f"<p><code>{html.escape(text)}</code></p>"
    if columns is None:
        return shown
    rows = (f"<tr><td>{html.escape(name)}</td><td>{html.escape(kind)}</td></tr>" for name, kind in columns.items())
    return f"{shown}<table><thead><tr><th>column</th><th>type</th></tr></thead><tbody>{''.join(rows)}</tbody></table>"

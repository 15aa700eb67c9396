"""Text from topics and files made safe for a terminal: job names and headlines come from whoever can write to the broker."""

from __future__ import annotations

import re

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
"""What a terminal obeys or hides, but for line feeds and tabs."""
MAX_TEXT = 4_000
"""Characters shown of one untrusted string."""


def clean(text: object, limit: int = MAX_TEXT) -> str:
    """*text* without control characters, escape sequences and bidirectional overrides, cut at *limit* characters.

    Line feeds and tabs stay. Markup is not touched: whoever prints with rich wraps it in ``rich.text.Text`` or escapes it.
    """
    shown = CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(text)[: limit + 1])
    return shown if len(shown) <= limit else shown[:limit] + "…"


def one_line(text: object, limit: int = 300) -> str:
    """Like :func:`clean`, on one line."""
    return " ".join(clean(text, limit).split())

"""Deterministic identifiers: the same inputs give the same id, so a redelivery or a replay changes nothing."""

from __future__ import annotations

import hashlib


def stable_id(prefix: str, *parts: str | int) -> str:
    """``prefix-`` and 16 hex digits of a SHA-256 over *parts*.

    Parts are joined with a separator that they cannot contain, so ``("ab", "c")`` and ``("a", "bc")`` differ.
    """
    joined = "\x1f".join(str(p).replace("\x1f", " ") for p in parts)
    return f"{prefix}-{hashlib.sha256(joined.encode()).hexdigest()[:16]}"

"""Holding a verdict against the truth, by the rules of accuracy_right.md: those that ``eroica tune`` goes by too."""

from __future__ import annotations

from eroica.offline.score import Score, score

__all__ = ["Score", "score"]

"""Which stage of a case takes the time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

__all__ = ["Stopwatch", "stage_table"]


class Stopwatch:
    """Seconds by stage, of one case."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time inside for *name*."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began


def stage_table(cases: Sequence[Mapping[str, float]]) -> str:
    """Sum, share, mean and longest case of each stage, as text; one mapping a case."""
    names = list(dict.fromkeys(name for case in cases for name in case))
    whole = sum(sum(case.values()) for case in cases) or 1.0
    lines = [f"{'stage':<24}{'s':>9}{'share':>8}{'ms a case':>11}{'longest':>9}"]
    for name in names:
        took = [case[name] for case in cases if name in case]
        mean, longest = 1e3 * sum(took) / len(took), 1e3 * max(took)
        lines.append(f"{name:<24}{sum(took):>9.1f}{100 * sum(took) / whole:>7.1f}%{mean:>11.1f}{longest:>9.0f}")
    return "\n".join(lines)

"""Settings of the summariser: every number with its unit and source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SummarySettings:
    """Limits and thresholds of one summary."""

    max_trace_bytes: int = 4 * 2**30
    """JSON, decompressed; a larger trace is refused."""
    min_beta: float = 0.002
    """Functions below this share of the window are left out: [P] needs those above 0.01; the margin lets peers be compared
    at it."""
    max_functions: int = 120
    """Kept by falling beta; fewer than 20 matter in practice ([P])."""
    max_slot_values: int = 128
    """Executions per communicator kept in full; above it first and last of each step and every k-th slot."""
    max_communicators: int = 64
    max_bytes: int = 100_000
    """Encoded summary ([G] < 100 KB): the least important goes first, and the summary says what went."""
    wire_bytes: int = 10_000
    """Aim after zstd; above it functions under 1 % and their stacks go."""

"""What the demo plays, with which settings, and when its verdict is right. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from eroica.schemas.errors import UsageError
from eroica.schemas.ranks import format_ranks, say_ranks
from eroica.schemas.verdicts import Verdict

Fault = Literal["slow-data", "slow-host", "none"]
FAULTS: tuple[Fault, ...] = ("slow-data", "slow-host", "none")
MIN_RANKS, MAX_RANKS = 3, 16
HOSTS = ("host-a", "host-b")

SETTINGS = (
    "agent.batch_interval_ms=500",
    "agent.announce_interval_ms=5000",
    "detect.window=20",
    "detect.recent=400",
    "detect.degradation_ratio=1.3",
    "detect.spike_confirm=6",
    "detect.cooldown_ms=10000",
    "detect.lead_ms=3000",
    "detect.budget_share=0.05",
    "detect.deadline_ms=45000",
    "detect.scheduled_every_ms=0",
)
"""Shorter windows and pauses than a job of weeks wants: a minute is enough to see everything."""

HEALTHY_STEPS = 90
"""Steps that detect must have seen before the fault: warm-up and a few windows to compare with."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run of the demo.

    :raises UsageError: a rank that is not there, or a number of ranks that this is not made for.
    """

    fault: Fault = "slow-data"
    fault_rank: int = 2
    ranks: int = 4

    def __post_init__(self) -> None:
        if not MIN_RANKS <= self.ranks <= MAX_RANKS:
            raise UsageError(f"{self.ranks} ranks are outside of {MIN_RANKS}..{MAX_RANKS}", where="--ranks")
        if not 0 <= self.fault_rank < self.ranks:
            raise UsageError(f"rank {self.fault_rank} is outside of 0..{self.ranks - 1}", where="--fault-rank")

    @property
    def ranks_of_host(self) -> tuple[int, int]:
        """Ranks on the first and on the second host."""
        first = (self.ranks + 1) // 2
        return first, self.ranks - first

    @property
    def innocent(self) -> str:
        """The ranks that must come out as waiting, as ranges."""
        return format_ranks(rank for rank in range(self.ranks) if rank != self.fault_rank)


def parse_fault(fault: str, fault_rank: int, ranks: int) -> Scenario:
    """A scenario from what a person typed.

    :raises UsageError: as :class:`Scenario`, or for a fault that there is not.
    """
    for known in FAULTS:
        if fault == known:
            return Scenario(known, fault_rank, ranks)
    raise UsageError(f"there is no fault {fault[:40]!r}", where="--fault", do=f"one of: {', '.join(FAULTS)}")


def mistakes(scenario: Scenario, verdict: Verdict) -> list[str]:
    """What is wrong with *verdict*, given what was really done; empty if it is right."""
    accused = [cause.suspects.ranks for cause in verdict.causes if cause.suspects.ranks or cause.suspects.hosts]
    if scenario.fault == "none":
        wrong = [f"accuses {say_ranks(ranks)}, though nothing was injected" for ranks in accused]
        if verdict.status == "culprit_found" and not wrong:
            wrong.append("says that a culprit was found, though nothing was injected")
        return wrong
    wrong = []
    if verdict.status != "culprit_found" or not verdict.causes:
        return [f"status is {verdict.status}, though rank {scenario.fault_rank} was slowed down"]
    root = verdict.causes[0]
    if root.suspects.ranks != str(scenario.fault_rank):
        wrong.append(f"accuses {say_ranks(root.suspects.ranks)} in place of {scenario.fault_rank}")
    if root.class_ != "worker":
        wrong.append(f"calls it {root.class_} in place of worker")
    if verdict.waiters.ranks != scenario.innocent:
        wrong.append(f"says that {say_ranks(verdict.waiters.ranks)} wait, in place of {scenario.innocent}")
    return wrong

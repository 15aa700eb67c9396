"""How the demo ended, for people and programs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from eroica.offline.demo.scenario import Scenario
from eroica.schemas.codec import encode
from eroica.schemas.ranks import say_ranks
from eroica.schemas.verdicts import Verdict


@dataclass(frozen=True)
class DemoResult:
    """How it ended."""

    scenario: Scenario
    verdict: Verdict
    wrong: list[str]
    """What is wrong with the verdict; empty if it names whom we slowed down, and nobody else."""
    trigger_to_verdict_s: float
    """From the fault (or the request by hand) to the verdict."""
    total_s: float

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "right": not self.wrong,
            "wrong": self.wrong,
            "fault": self.scenario.fault,
            "fault_rank": self.scenario.fault_rank if self.scenario.fault != "none" else None,
            "ranks": self.scenario.ranks,
            "trigger_to_verdict_s": round(self.trigger_to_verdict_s, 2),
            "total_s": round(self.total_s, 2),
            "verdict": json.loads(encode(self.verdict)),
        }

    def closing(self) -> str:
        """The last line for a person."""
        since = "request by hand" if self.scenario.fault == "none" else "fault injected"
        if self.wrong:
            right = f"WRONG: the verdict {'; '.join(self.wrong)}"
        elif self.scenario.fault == "none":
            right = "right: nobody is accused"
        else:
            right = f"right: rank {self.scenario.fault_rank} is named, {say_ranks(self.scenario.innocent)} merely wait"
        return f"{since} → verdict: {self.trigger_to_verdict_s:.1f} s ({right}; the demo took {self.total_s:.0f} s)"

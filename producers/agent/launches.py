"""What is known of a launch and its processes on this host. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
from msgspec import Meta

from eroica.producers.agent.hello import Hello

PROCESS_GONE = "process_gone"
"""``last_event`` of a rank whose process ended without a goodbye."""
GONE_LINGER_US = 60_000_000
"""A launch whose processes have all gone, not all with a goodbye, is reported for so long, so that a stall can be declared."""
MEAN_OVER = 20
SETTLE_NS = 1_000_000_000
"""After its hello a process may take so long to say in which step it is: what it did before lies in its ring."""
SILENT_NS = 5_000_000_000
SILENT_STEPS = 3
"""A process that a former agent followed, and that has not spoken since for so long, or so many steps, stands still."""

_Nat = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """How far a process is."""

    pid: _Nat
    last_step: Annotated[int, Meta(ge=-1, le=2**63 - 1)]
    last_event: Annotated[str, Meta(max_length=64)]
    event_mono_ns: _Nat
    mean_us: Annotated[float, Meta(ge=0)] = 0.0
    ended: bool = False
    gone: bool = False


@dataclass
class Worker:
    """One process. ``alive`` until it said goodbye or went without one."""

    hello: Hello
    event_mono_ns: int
    last_event: str = "hello"
    last_step: int = -1
    runs: list[tuple[int, list[int], int]] = field(default_factory=list)
    """Iterations for the next batch: first step, durations µs of consecutive steps, event time µs of the last one's end."""
    pending: int = 0
    recent_us: deque[int] = field(default_factory=lambda: deque(maxlen=MEAN_OVER))
    ended: bool = False
    gone: bool = False
    dropped: int = 0
    """Datagrams that its hook could not send."""
    settles_ns: int = 0
    """Until then (monotonic) it may be in another step than ``last_step``: what it did lies in its ring, or it has not spoken."""

    @property
    def alive(self) -> bool:
        """Whether the process runs, as far as known."""
        return not (self.ended or self.gone)

    @property
    def mean_us(self) -> float:
        """Mean of the last iterations; 0 before the first."""
        return sum(self.recent_us) / len(self.recent_us) if self.recent_us else 0.0


@dataclass
class Run:
    """One launch of a job, the part of it on this host."""

    job: str
    run_id: str
    world_size: int
    started_at_us: int
    workers: dict[int, Worker] = field(default_factory=dict)
    """By rank; a restarted rank's newest process."""
    over_since_us: int = 0
    refused: bool = False
    """Another job holds the name: nothing of this one is sent."""

    @property
    def key(self) -> tuple[str, str]:
        """Job and launch."""
        return self.job, self.run_id

    @property
    def over(self) -> bool:
        """No process of it runs here any more."""
        return not any(worker.alive for worker in self.workers.values())

    @property
    def ended(self) -> bool:
        """All of its processes here said goodbye."""
        return all(worker.ended for worker in self.workers.values())

    def given_up(self, now_us: int) -> bool:
        """Its processes have been gone for :data:`GONE_LINGER_US`, not all with a goodbye: nobody waits for them any more."""
        return self.over_since_us > 0 and not self.ended and now_us - self.over_since_us >= GONE_LINGER_US

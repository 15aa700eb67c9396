"""A published timeline of operations (parquet) in, one verdict out: what mending it would give back decides who is at fault."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from eroica import __version__
from eroica.localizer.actions import Advice
from eroica.localizer.fit import fit
from eroica.localizer.rules.eroica import FEW_STEPS
from eroica.offline.align import when
from eroica.offline.timeline_evidence import RULE, evidence_of, local_kinds
from eroica.offline.timeline_words import Words
from eroica.schemas.errors import InvalidInput
from eroica.schemas.ids import stable_id
from eroica.schemas.ranks import format_ranks, say_ranks
from eroica.schemas.settings import EroicaSettings
from eroica.schemas.verdicts import (
    NOT_ENOUGH,
    Cause,
    Coverage,
    Impact,
    IsolationGroup,
    Provenance,
    RequestRef,
    Status,
    Suspects,
    Verdict,
    Waiters,
)
from eroica.schemas.wording import say_share
from eroica.topology.mended import MendedCause
from eroica.topology.mending import mended_causes
from eroica.topology.slow_transfers import Worker
from eroica.topology.straggler_analysis import Timeline, is_timeline, read_timeline
from eroica.topology.timeline import COMPUTE
from eroica.topology.whatif import WhatIf, WhatIfReport

__all__ = ["diagnose_timeline", "timeline_in"]

DOUBTFUL = 0.7
"""Highest confidence with one peer only, for transfers, whose cause a timeline does not show, and where columns or times
contradict each other or ranks fit several layouts."""
ONE_REPLICA = 0.6
"""Highest confidence in a heavy stage where no second replica shows that it is not the machine."""
ONCE = 0.6
"""Highest confidence in what happened in one step, and in what a replica's workers share: a timeline does not show why."""
RARELY = 0.2
"""Transfers that are slow in less than this share of the steps are no lasting fault."""
UNCERTAIN = 0.4
"""Highest confidence in slow transfers where their ends contradict each other, or where they may be the wait for a replica
or stage that nobody saw: nothing is accused."""
MOST = 0.97


def timeline_in(place: Path) -> Path | None:
    """The timeline that *place* means: the file itself, or the only one in a folder without traces; ``None`` if there is none.

    :raises InvalidInput: several in one folder.
    """
    if is_timeline(place):
        return place
    if not place.is_dir():
        return None
    found = sorted(p for p in place.glob("*.parquet") if is_timeline(p))
    if len(found) > 1:
        raise InvalidInput(
            f"the folder holds {len(found)} timelines, each of another job", where=str(place), do=f"name one: {found[0].name}"
        )
    return found[0] if found else None


def diagnose_timeline(path: Path, settings: EroicaSettings) -> Verdict:
    """Judge the timeline at *path*. The same file gives the same verdict, byte for byte, wherever it stands.

    :raises InvalidInput: it is not a timeline that can be read.
    :raises MissingDependency: without pyarrow.
    """
    timeline = read_timeline(path)
    try:
        whatif = timeline.what_if()
    except ValueError as error:
        raise InvalidInput(str(error), where=str(path)) from error
    return _Judge(timeline, whatif, settings, path.stem).verdict()


class _Judge:
    def __init__(self, timeline: Timeline, whatif: WhatIf, settings: EroicaSettings, job: str) -> None:
        self.timeline, self.whatif, self.job = timeline, whatif, job
        self.settings = settings.localize
        self.report: WhatIfReport = whatif.report()
        self.who = timeline.who
        self.lanes, self.stages = self.who.rank_of.shape
        self.words = Words(self.who, timeline.steps)
        self.seen = self.lanes * self.stages * self.who.width
        untold = self.who.absent * self.stages + self.who.later * (self.lanes + self.who.absent)
        self.world = self.seen + (len(self.who.missing) or untold * self.who.width)

    def verdict(self) -> Verdict:
        causes = [(c, self._confidence(c)) for c in mended_causes(self.whatif, self.timeline.meetings)]
        sure = [(c, p) for c, p in causes if p >= self.settings.accuse_confidence]
        said = [self._cause(c, p) for c, p in sure]
        notes = [*self.timeline.notes, *(self._doubt(c, p) for c, p in causes if p < self.settings.accuse_confidence)]
        if any(c.kind == "pipeline_stage" and self.lanes == 1 for c, _ in sure):
            notes.append("with one replica a heavy stage and a slow machine look alike")
        if self.who.absent and self.lanes > 1:
            notes.append("what the replicas wait for in their collectives may be those that are not in the timeline")
        if self.who.width > 1:
            notes.append(f"the timeline has one row for {self.who.width} tensor-parallel ranks: it cannot tell them apart")
        status: Status = "insufficient_data" if self.who.later else "no_fault_found"
        if said:
            status = "culprit_found" if said[0].class_ in ("worker", "link") else "shared_cause"
        steps = self.timeline.steps
        end_s = float((self.timeline.start_s + self.timeline.duration_s).max())
        request = stable_id("timeline", self.job, f"{end_s:.6f}", len(self.whatif.graph.ops))
        return fit(
            Verdict(
                verdict_id=stable_id("verdict", self.job, request, self.settings.digest()),
                job=self.job,
                request=RequestRef(id=request, reason="offline", steps=(int(steps[0]), int(steps[-1]))),
                status=status,
                headline=self._headline(sure),
                event_time=when(self.timeline.ended_s * 1e6),
                causes=said,
                waiters=self._waiters([c for c, _ in sure]),
                impact=self._impact(),
                coverage=Coverage(
                    expected=self.world,
                    received=self.seen,
                    missing=format_ranks(self.who.missing),
                    topology_source="coordinates",
                    notes=notes,
                ),
                provenance=Provenance(settings_digest=self.settings.digest(), software=f"eroica {__version__}", rules=RULE),
            )
        )

    def _ranks(self, workers: tuple[Worker, ...]) -> list[int]:
        return self.words.ranks(workers)

    def _confidence(self, cause: MendedCause) -> float:
        """From the share that comes back, the steps that agree and the peers that there were."""
        known = 0.3 + 0.4 * min(max(cause.recovered, 0.0), 1.0) + 0.3 * cause.agreement
        most = MOST
        transfers = cause.kind in ("link", "fabric")
        if transfers or (cause.kind == "worker" and cause.peers < 2):
            most = DOUBTFUL
        if cause.kind == "pipeline_stage" and cause.peers < 2:
            most = ONE_REPLICA
        if cause.steps or cause.replicas:
            alone = cause.kind == "data_imbalance" and self.stages == 1  # nor do other stages say that it was the data
            most = UNCERTAIN if alone else ONCE
        partial = self.who.missing or self.who.absent or self.who.later or self.who.ambiguous
        if transfers and (self.timeline.contradict or partial or cause.agreement < RARELY):
            most = UNCERTAIN
        if self.timeline.contradict or self.who.ambiguous or (self.who.contradict and cause.workers):
            most = min(most, DOUBTFUL)
        return round(min(known, most) * FEW_STEPS.get(len(self.timeline.steps), 1.0), 3)

    def _cause(self, cause: MendedCause, confidence: float) -> Cause:
        ranks = self._ranks(cause.workers)
        held = cause.workers or tuple(w for pair in cause.where.pairs for w in pair) or cause.where.group
        stages = {s for _, s in cause.workers} | {s for pair in cause.where.pairs for _, s in pair} | set(cause.where.stages)
        if cause.where.group and len({s for _, s in cause.where.group}) == 1:
            stages |= {s for _, s in cause.where.group}
        if cause.stage >= 0:
            stages.add(cause.stage)
        return Cause(
            class_=cause.kind,
            suspects=Suspects(ranks=format_ranks(ranks), stages=sorted(stages), links=self._links(cause)),
            isolation_group=self._isolation(cause, held),
            functions=local_kinds(cause, self.whatif) if cause.kind in ("worker", "pipeline_stage", "data_imbalance") else [],
            explains=round(min(max(cause.recovered, 0.0), 1.0), 4),
            confidence=confidence,
            evidence=evidence_of(cause, self.whatif, self.report, self.words),
            action=Advice().action(cause.kind, None),
        )

    def _links(self, cause: MendedCause) -> list[str]:
        """As verdicts name links: ``rank 5``, ``rank 5|rank 9``; a group's by its ranks."""
        if cause.kind != "link":
            return []
        alone = [f"rank {r}" for r in self._ranks(cause.workers)]
        pairs = ["|".join(self._named((w,)) for w in pair) for pair in cause.where.pairs]
        return [*alone, *pairs, *([self._named(cause.where.group)] if cause.where.group else [])]

    def _named(self, workers: tuple[Worker, ...]) -> str:
        return say_ranks(format_ranks(self._ranks(workers)), 120)

    def _isolation(self, cause: MendedCause, held: tuple[Worker, ...]) -> IsolationGroup:
        """The smallest parallel group that holds the suspects."""
        if len(cause.replicas) == 1:
            held = tuple((cause.replicas[0], s) for s in range(self.stages))
        if held:
            lanes, stages = {d for d, _ in held}, {s for _, s in held}
            if len(held) == 1 and self.who.width > 1:
                return IsolationGroup(kind="tp", ranks=format_ranks(self._ranks(held)))
            if len(held) > 1 and len(lanes) == 1:
                replica = tuple((d, s) for d in lanes for s in range(self.stages))
                return IsolationGroup(kind="pp", ranks=format_ranks(self._ranks(replica)))
            if len(held) > 1 and len(stages) == 1:
                return IsolationGroup(kind="dp", ranks=format_ranks(self._of_stage(stages.pop())))
        if cause.stage >= 0:
            return IsolationGroup(kind="stage", ranks=format_ranks(self._of_stage(cause.stage)))
        return IsolationGroup(kind="world", ranks=self._all())

    def _of_stage(self, stage: int) -> list[int]:
        return self._ranks(tuple((d, stage) for d in range(self.lanes)))

    def _all(self) -> str:
        return format_ranks(self._ranks(tuple((d, s) for d in range(self.lanes) for s in range(self.stages))))

    def _waiters(self, causes: list[MendedCause]) -> Waiters:
        """Those that are no suspects: what of their step is neither compute nor transfer."""
        if not causes or not (causes[0].workers or causes[0].stage >= 0):
            return Waiters()
        slow = {w for c in causes for w in c.workers} | {(d, c.stage) for c in causes if c.stage >= 0 for d in range(self.lanes)}
        others = [(d, s) for d in range(self.lanes) for s in range(self.stages) if (d, s) not in slow]
        if not others:
            return Waiters()
        graph, times = self.whatif.graph, self.whatif.times
        computes = np.isin(graph.kind, [k for k, name in enumerate(graph.kinds) if name in COMPUTE])
        busy = np.array([times[computes & (graph.stage == s), d].sum(axis=0).mean() for d, s in others])
        share = float(np.clip(1.0 - busy / self.report.step, 0.0, 1.0).mean())
        return Waiters(ranks=format_ranks(self._ranks(tuple(others))), wait_share=round(share, 4))

    def _impact(self) -> Impact:
        r = self.report
        several = self.lanes * self.stages > 1
        return Impact(
            step_ms=round(r.step * 1e3, 3),
            ideal_step_ms=round(r.ideal_step * 1e3, 3),
            slowdown=round(r.slowdown, 4),
            waste=round(r.waste, 4),
            recovered_by_slowest_3pct=round(r.recovered_by_slowest_3pct, 5) if several else None,
            recovered_by_last_stage=round(r.recovered_by_last_stage, 5) if self.stages > 1 else None,
            gpu_hours_per_day=round(max(r.waste, 0.0) * self.world * 24.0, 2),
        )

    def _headline(self, causes: list[tuple[MendedCause, float]]) -> str:
        slowdown = self.report.slowdown
        if not causes and self.who.later:
            return f"{self.job}: cannot tell, the last stages are not in the timeline: transfers may be the wait for them"
        if not causes:
            return f"{self.job}: nothing to accuse; the step takes {slowdown:.2f} times the ideal one"
        cause, sure = causes[0]
        back = f"mending it gives back {say_share(min(cause.recovered, 1.0))} of what is lost ({say_share(sure)} sure)"
        return f"{self.job}: {self.words.said(cause)}; {back}"

    def _doubt(self, cause: MendedCause, confidence: float) -> str:
        limit = self.settings.accuse_confidence
        return f"{NOT_ENOUGH} ({confidence:.2f} < {limit}): {cause.kind}, {self.words.said(cause)}"

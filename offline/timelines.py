"""A published timeline of operations (parquet) in, one verdict out: what mending it would give back decides who is at fault."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from eroica import __version__
from eroica.localizer.actions import Advice
from eroica.localizer.fit import fit
from eroica.offline.align import when
from eroica.schemas.errors import InvalidInput
from eroica.schemas.ids import stable_id
from eroica.schemas.ranks import format_ranks, say_ranks
from eroica.schemas.settings import EroicaSettings
from eroica.schemas.verdicts import (
    NOT_ENOUGH,
    Cause,
    Coverage,
    Evidence,
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
from eroica.topology.mending import COMPUTE, MendedCause, mended_causes
from eroica.topology.straggler_analysis import Timeline, is_timeline, read_timeline
from eroica.topology.whatif import WhatIf, WhatIfReport

__all__ = ["diagnose_timeline", "timeline_in"]

RULE = "what-if"
DOUBTFUL = 0.7
"""Highest confidence with one peer only, for transfers, whose cause a timeline does not show, and where columns or times
contradict each other or ranks fit several layouts."""
ONE_REPLICA = 0.6
"""Highest confidence in a heavy stage where no second replica shows that it is not the machine."""
UNCERTAIN = 0.4
"""Highest confidence in slow transfers where their ends contradict each other, or where they may be the wait for a replica
or stage that nobody saw: nothing is accused."""
MOST = 0.97
WORDS = {
    "worker": "computes slowly",
    "pipeline_stage": "has too much work in every replica",
    "data_imbalance": "micro-batches are of unequal length",
    "software_pause": "garbage collection holds the step up",
    "link": "sends and receives slowly",
    "fabric": "transfers are slow",
}


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
        self.seen = self.lanes * self.stages * self.who.width
        untold = self.who.absent * self.stages + self.who.later * (self.lanes + self.who.absent)
        self.world = self.seen + (len(self.who.missing) or untold * self.who.width)

    def verdict(self) -> Verdict:
        causes = [(c, self._confidence(c)) for c in mended_causes(self.whatif)]
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

    def _ranks(self, workers: tuple[tuple[int, int], ...]) -> list[int]:
        first = [int(self.who.rank_of[d, s]) for d, s in workers]
        return sorted(r + i for r in first if r >= 0 for i in range(self.who.width))

    def _lane(self, lane: int) -> int:
        return int(self.who.lanes[lane])

    def _confidence(self, cause: MendedCause) -> float:
        """From the share that comes back, the steps that agree and the peers that there were."""
        known = 0.3 + 0.4 * min(max(cause.recovered, 0.0), 1.0) + 0.3 * cause.agreement
        most = MOST
        if cause.kind in ("link", "fabric") or (cause.kind == "worker" and cause.peers < 2):
            most = DOUBTFUL
        if cause.kind == "pipeline_stage" and cause.peers < 2:
            most = ONE_REPLICA
        partial = self.who.missing or self.who.absent or self.who.later or self.who.ambiguous
        if cause.kind in ("link", "fabric") and (self.timeline.contradict or partial):
            most = UNCERTAIN
        if self.timeline.contradict or self.who.ambiguous or (self.who.contradict and cause.workers):
            most = min(most, DOUBTFUL)
        return round(min(known, most), 3)

    def _place(self, cause: MendedCause) -> str:
        if cause.workers:
            return ", ".join(f"(dp {self._lane(d)}, stage {s})" for d, s in cause.workers[:5])
        return f"stage {cause.stage}" if cause.stage >= 0 else "all"

    def _cause(self, cause: MendedCause, confidence: float) -> Cause:
        ranks = self._ranks(cause.workers)
        stages = sorted({s for _, s in cause.workers} | ({cause.stage} if cause.stage >= 0 else set()))
        if cause.workers:
            kind = "tp" if self.who.width > 1 and len(cause.workers) == 1 else "world"
            held = format_ranks(ranks) if kind == "tp" else self._all()
        else:
            held = self._all() if cause.stage < 0 else format_ranks(self._of_stage(cause.stage))
            kind = "world" if cause.stage < 0 else "stage"
        return Cause(
            class_=cause.kind,
            suspects=Suspects(
                ranks=format_ranks(ranks), stages=stages, links=[f"rank {r}" for r in ranks] if cause.kind == "link" else []
            ),
            isolation_group=IsolationGroup(kind=kind, ranks=held),
            functions=list(COMPUTE) if cause.kind in ("worker", "pipeline_stage", "data_imbalance") else [],
            explains=round(min(max(cause.recovered, 0.0), 1.0), 4),
            confidence=confidence,
            evidence=self._evidence(cause),
            action=Advice().action(cause.kind, None),
        )

    def _evidence(self, cause: MendedCause) -> list[Evidence]:
        place = self._place(cause)
        out = [
            _item(
                "step",
                "step if mended",
                place,
                cause.step * 1e3,
                "ms",
                self.report.step * 1e3,
                cause.recovered,
                "share",
                "as it was",
            ),
        ]
        if cause.kind == "worker":
            for d, s in cause.workers[:5]:
                peers = f"dp {format_ranks(self._lane(x) for x in range(self.lanes) if x != d)} of stage {s}"
                out += [self._computed(kind, d, s, peers) for kind in self._kinds()]
        elif cause.kind == "pipeline_stage":
            out += [self._computed(kind, None, cause.stage, "the other stages") for kind in self._kinds()]
        elif cause.kind == "data_imbalance":
            text = "forward against backward of a micro-batch"
            out.append(
                _item("step", "correlation of lengths", place, cause.agreement, "1", 0.0, cause.agreement, "correlation", text)
            )
        elif cause.kind == "link":
            out.append(
                _item("wait", "time of transfers", place, cause.ratio, "×", 1.0, cause.ratio, "ratio", "the other workers")
            )
        return out

    def _kinds(self) -> list[str]:
        return [k for k in COMPUTE if k in self.whatif.graph.kinds]

    def _computed(self, kind: str, lane: int | None, stage: int, peers: str) -> Evidence:
        """Mean time of an operation against the peers' median."""
        graph = self.whatif.graph
        mine = graph.kind == graph.kinds.index(kind)
        table = np.stack([self.whatif.times[mine & (graph.stage == s)].mean(axis=(0, 2)) for s in range(self.stages)])
        if lane is None:
            value, expected = float(table[stage].mean()), float(np.median(np.delete(table, stage, axis=0)))
        else:
            value, expected = float(table[stage, lane]), float(np.median(np.delete(table[stage], lane)))
        subject = f"stage {stage}" if lane is None else f"dp {self._lane(lane)}, stage {stage}"
        score = value / expected if expected > 0 else 0.0
        return _item("function", f"mean {kind}", subject, value * 1e3, "ms", expected * 1e3, score, "ratio", peers)

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
        computes = np.isin(graph.kind, [graph.kinds.index(k) for k in self._kinds()])
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
        who = self._place(cause)
        if cause.workers:
            ranks = self._ranks(cause.workers)
            who = f"{say_ranks(format_ranks(ranks), 60)}, {who},"
        what = WORDS[cause.kind] if who == "all" else f"{who} {WORDS[cause.kind]}"
        more = f" ({cause.ratio:.2f} times its peers)" if cause.kind in ("worker", "pipeline_stage", "link") else ""
        back = f"mending it gives back {say_share(min(cause.recovered, 1.0))} of what is lost ({say_share(sure)} sure)"
        return f"{self.job}: {what}{more}; {back}"

    def _doubt(self, cause: MendedCause, confidence: float) -> str:
        limit = self.settings.accuse_confidence
        return f"{NOT_ENOUGH} ({confidence:.2f} < {limit}): {cause.kind}, {self._place(cause)}"


def _item(
    kind: str,
    metric: str,
    subject: str,
    value: float,
    unit: str,
    expected: float,
    score: float,
    score_kind: str,
    compared_with: str,
) -> Evidence:
    return Evidence(
        kind=kind,
        metric=metric,
        subject=subject,
        value=round(value, 3),
        unit=unit,
        expected=round(expected, 3),
        score=round(score, 4),
        score_kind=score_kind,
        rule=RULE,
        compared_with=compared_with,
    )

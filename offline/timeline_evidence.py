"""What of a timeline speaks for a cause: comparisons that a person can redo."""

from __future__ import annotations

import numpy as np

from eroica.offline.timeline_words import Words
from eroica.schemas.ranks import format_ranks
from eroica.schemas.verdicts import Evidence
from eroica.topology.mended import MendedCause
from eroica.topology.timeline import COMPUTE
from eroica.topology.whatif import WhatIf, WhatIfReport

__all__ = ["RULE", "evidence_of", "local_kinds"]

RULE = "what-if"


def local_kinds(cause: MendedCause, whatif: WhatIf, stage: int = -1) -> list[str]:
    """Kinds of work that *cause* is about and that the timeline has, of *stage* if one is given."""
    has = {o.kind for o in whatif.graph.ops if stage in (-1, o.stage)}
    return [k for k in cause.kinds or COMPUTE if k in has]


def evidence_of(cause: MendedCause, whatif: WhatIf, report: WhatIfReport, words: Words) -> list[Evidence]:
    """What speaks for *cause*: the step without it, and what shows it against its peers."""
    place, ratio = words.place(cause), cause.ratio
    lanes = range(whatif.graph.lanes)

    def others(but: tuple[int, ...]) -> str:
        return f"dp {format_ranks(words.lane(d) for d in lanes if d not in but)}"

    out = [
        _item("step", "step if mended", place, cause.step * 1e3, "ms", report.step * 1e3, cause.recovered, "share", "as it was")
    ]
    if cause.kind == "worker":
        for d, s in cause.workers[:5]:
            peers = f"{others((d,))} of stage {s}"
            out += [_took(kind, d, s, peers, whatif, words) for kind in local_kinds(cause, whatif, s)]
    elif cause.kind == "pipeline_stage":
        out += [_took(kind, None, cause.stage, "the other stages", whatif, words) for kind in local_kinds(cause, whatif)]
    elif cause.kind == "data_imbalance" and cause.replicas and not cause.steps:
        out.append(_item("step", "compute, median of its stages", place, ratio, "×", 1.0, ratio, "ratio", others(cause.replicas)))
    elif cause.kind == "data_imbalance":
        text = "forward against backward of a micro-batch"
        out.append(
            _item("step", "correlation of lengths", place, cause.agreement, "1", 0.0, cause.agreement, "correlation", text)
        )
    elif cause.kind == "software_pause" and cause.workers:
        out.append(_item("step", "compute", place, ratio, "×", 1.0, ratio, "ratio", "its stage, all replicas and steps"))
    elif cause.kind == "link" or cause.where.stages:
        out.append(
            _item("wait", "time of transfers", place, ratio, "×", 1.0, ratio, "ratio", f"{cause.peers} others that do the same")
        )
    return out


def _took(kind: str, lane: int | None, stage: int, peers: str, whatif: WhatIf, words: Words) -> Evidence:
    """Mean time of an operation against the peers' median."""
    graph = whatif.graph
    mine = graph.kind == graph.kinds.index(kind)
    if lane is None:
        every = range(int(graph.stage.max()) + 1)
        table = np.stack([whatif.times[mine & (graph.stage == s)].mean(axis=(0, 2)) for s in every])
        value, expected = float(table[stage].mean()), float(np.median(np.delete(table, stage, axis=0)))
    else:
        each = whatif.times[mine & (graph.stage == stage)].mean(axis=(0, 2))
        value, expected = float(each[lane]), float(np.median(np.delete(each, lane)))
    subject = f"stage {stage}" if lane is None else f"dp {words.lane(lane)}, stage {stage}"
    score = value / expected if expected > 0 else 0.0
    return _item("function", f"mean {kind}", subject, value * 1e3, "ms", expected * 1e3, score, "ratio", peers)


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

"""A blocked job: stacks in place of profiles. Equal stacks are grouped; the largest group is taken to be healthy (ByteRobust)."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np

from eroica.localizer.frame import Frame
from eroica.localizer.judgement import Finding, Judgement
from eroica.schemas.groups import StackRow
from eroica.schemas.ranks import format_ranks, say_ranks
from eroica.schemas.verdicts import Evidence

_VARIES = re.compile(r"0x[0-9a-f]+|\b\d+\b")
MAX_OUTLIER_SHARE = 0.25
"""More workers than this outside of the largest group are no outliers."""
MAX_PLACES = 6
STANDS_STILL = "the job stands still, and no small group of its workers stands elsewhere than the rest"
HANG_CONFIDENCE = 0.6
"""Stacks alone show who stands elsewhere, not why: moderate at most."""


def judge_stacks(frame: Frame) -> Judgement:
    """Who of a stuck job stands somewhere else than most."""
    told = [row for row in frame.stacks if row.threads]
    notes = [f"rank {row.rank}: {row.error}" for row in frame.stacks if row.error][:8]
    if len(told) < 3:
        return Judgement(comparable=False, notes=[*notes, f"stacks of {len(told)} workers are too few to compare"])
    groups: dict[str, list[StackRow]] = defaultdict(list)
    for row in told:
        groups[main_stack(row)].append(row)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    most = ordered[0][1]
    usual_now = innermost(told_stack(min(most, key=lambda row: row.rank)))
    odd = sorted((row for _, rows in ordered[1:] for row in rows), key=lambda row: row.rank)
    if not odd or len(odd) > MAX_OUTLIER_SHARE * len(told) or len(most) < 2:
        where = [
            f"{say_ranks(format_ranks(row.rank for row in rows))} in {innermost(told_stack(rows[0]))}" for _, rows in ordered
        ]
        more = [f"and {len(where) - MAX_PLACES} more places"] if len(where) > MAX_PLACES else []
        stand = f"where they stand: {'; '.join([*where[:MAX_PLACES], *more])}"
        return Judgement(comparable=False, why=STANDS_STILL, notes=[*notes, stand])
    compared = say_ranks(format_ranks(row.rank for row in most))
    evidence = [
        Evidence(
            kind="stack", metric="innermost frames of the main thread", subject=f"rank {row.rank}: {innermost(told_stack(row))}",
            value=1.0, unit="1", expected=0.0, score=1.0,
            score_kind="value", rule=f"differs from: {usual_now}", compared_with=compared,
        )
        for row in odd[:16]
    ]  # fmt: skip
    places: dict[str, str] = {}  # equal places, told by the lines of the first rank that stands there
    for row in odd:
        places.setdefault(innermost(main_stack(row)), innermost(told_stack(row)))
    coverage = len(told) / max(frame.expected.size, 1)
    finding = Finding(
        "hang",
        np.array([row.rank for row in odd], dtype=np.int64),
        explains=0.0,
        confidence=round(HANG_CONFIDENCE * coverage, 3),
        functions=list(places.values())[:5],
        evidence=evidence,
        hosts=sorted({row.host for row in odd}),
    )
    return Judgement(findings=[finding], notes=notes)


def main_stack(row: StackRow) -> str:
    """The main thread's frames, without what differs between equal processes (numbers and addresses)."""
    return _VARIES.sub("#", told_stack(row))


def told_stack(row: StackRow) -> str:
    """The main thread's frames as the agent sent them, lines of files included."""
    chosen = next((t for t in row.threads if "MainThread" in t.split(":", 1)[0]), row.threads[0])
    return chosen.partition(": ")[2] or chosen


def innermost(stack: str) -> str:
    """The two innermost frames of a stack."""
    return " < ".join(reversed(stack.split(";")[-2:]))[:200]

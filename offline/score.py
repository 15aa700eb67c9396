"""Holding a verdict against the truth: a claim is right if its class and its place are.

Labels are as ``eroica simulate`` writes them. What counts as the right place of each class is told in docs/accuracy.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eroica.schemas.ranks import parse_ranks
from eroica.schemas.verdicts import Cause, Verdict

ACCUSE = 0.5
"""Below this confidence nobody is accused."""
PLACED = ("worker", "host", "link")
"""Classes that name a machine."""


@dataclass(frozen=True)
class Score:
    """What a verdict is worth in one case."""

    rules: str
    truth: str
    """Class, or ``healthy``."""
    said: str
    """Class of the first cause, or the status where there is none."""
    accused: bool
    """A machine is named with confidence."""
    right: bool
    """First cause: class and place. Of a healthy run: nobody is accused, and no cause claimed that is not really there."""
    class_right: bool
    """First cause: class alone."""
    found: int
    """Of the true causes, how many are among those named."""
    of: int
    waiter: bool
    """A rank that only waits is named as suspect."""
    confidence: float


def score(verdict: Verdict, truth: dict[str, Any]) -> Score:
    """Score *verdict*."""
    named = [c for c in verdict.causes if c.confidence >= ACCUSE and c.class_ != "unknown"]
    claims = named if verdict.status in ("culprit_found", "shared_cause") else []
    accused = any(_place(c) for c in claims if c.class_ in PLACED)
    wanted = truth["causes"]
    # What is out of balance in the job itself is a true statement, but not the fault that is looked for.
    aside = set(truth.get("imbalances", ())) - {c for cause in wanted for c in _classes(cause)}
    first = next((c for c in claims if c.class_ not in aside), None)
    said = first.class_ if first else claims[0].class_ if claims else str(verdict.status)
    if wanted:
        right = first is not None and any(_matches(first, cause) for cause in wanted)
        class_right = first is not None and any(first.class_ in _classes(cause) for cause in wanted)
    else:
        right = class_right = first is None
    return Score(
        rules=verdict.provenance.rules,
        truth=wanted[0]["class"] if wanted else "healthy",
        said=said,
        accused=accused,
        right=right,
        class_right=class_right,
        found=sum(any(_matches(c, cause) for c in claims) for cause in wanted),
        of=len(wanted),
        waiter=any(_names_waiter(c, truth) for c in claims),
        confidence=first.confidence if first else claims[0].confidence if claims else 0.0,
    )


def _place(cause: Cause) -> bool:
    return bool(cause.suspects.ranks or cause.suspects.hosts or cause.suspects.links)


def _set(text: str) -> frozenset[int]:
    return frozenset(parse_ranks(text).tolist())


def _classes(truth: dict[str, Any]) -> tuple[str, ...]:
    return (truth["class"], *truth.get("alternatives", []))


def _matches(cause: Cause, truth: dict[str, Any]) -> bool:
    """Whether class and place are right."""
    if cause.class_ not in _classes(truth):
        return False
    if "link" in (truth["class"], cause.class_):
        return _link_matches(cause, truth)
    if cause.class_ in PLACED or truth["class"] in PLACED or cause.class_ == "pipeline_stage":
        return _some_of(cause, truth["suspects"])
    return True


def _some_of(cause: Cause, true: dict[str, Any]) -> bool:
    """Something of the true place is named and nothing beside it, in the terms of the class."""
    ranks, hosts, stages = _set(cause.suspects.ranks), set(cause.suspects.hosts), set(cause.suspects.stages)
    if cause.class_ == "pipeline_stage" and stages:
        return stages <= set(true["stages"])
    if cause.class_ == "host" and hosts:
        return hosts <= set(true["hosts"])
    return bool(ranks) and ranks <= _set(true["ranks"])


def _link_matches(cause: Cause, truth: dict[str, Any]) -> bool:
    true, said = truth["suspects"], cause.suspects
    if set(said.links) & set(true["links"]):
        return True
    if "lookalikes" in truth:
        return bool(said.ranks) and _set(said.ranks) <= _set(truth["lookalikes"]) | _set(true["ranks"])
    ends = set(true["hosts"])
    return (bool(said.hosts) and set(said.hosts) <= ends) or any(all(end in link for end in ends) for link in said.links)


def _names_waiter(cause: Cause, truth: dict[str, Any]) -> bool:
    if cause.class_ not in PLACED or not cause.suspects.ranks:
        return False
    innocent = _set(truth["waiters"])
    for true in truth["causes"]:
        innocent -= _set(true["suspects"]["ranks"]) | _set(true.get("lookalikes", ""))
    return bool(_set(cause.suspects.ranks) & innocent)

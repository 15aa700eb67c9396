"""Holding a verdict against the truth."""

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
    """First cause: class and place; of a healthy run: nobody is accused and no cause is claimed."""
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
    said = claims[0].class_ if claims else str(verdict.status)
    right = any(_matches(claims[0], cause) for cause in wanted) if claims and wanted else not claims and not wanted
    return Score(
        rules=verdict.provenance.rules,
        truth=wanted[0]["class"] if wanted else "healthy",
        said=said,
        accused=accused,
        right=right,
        found=sum(any(_matches(c, cause) for c in claims) for cause in wanted),
        of=len(wanted),
        waiter=any(_names_waiter(c, truth) for c in claims),
        confidence=claims[0].confidence if claims else 0.0,
    )


def _place(cause: Cause) -> bool:
    return bool(cause.suspects.ranks or cause.suspects.hosts or cause.suspects.links)


def _set(text: str) -> frozenset[int]:
    return frozenset(parse_ranks(text).tolist())


def _matches(cause: Cause, truth: dict[str, Any]) -> bool:
    """Class right, and the place as far as the class has one: something of it, and nothing beside it."""
    if cause.class_ not in (truth["class"], *truth.get("alternatives", [])):
        return False
    true, said = truth["suspects"], cause.suspects
    if truth["class"] == "worker":
        return bool(said.ranks) and _set(said.ranks) <= _set(true["ranks"])
    if truth["class"] == "host":
        if cause.class_ == "pipeline_stage":
            return True
        hosts = set(said.hosts)
        return (bool(hosts) and hosts <= set(true["hosts"])) or (bool(said.ranks) and _set(said.ranks) <= _set(true["ranks"]))
    if truth["class"] == "link":
        if "lookalikes" in truth:
            allowed = _set(truth["lookalikes"]) | _set(true["ranks"])
            return (bool(said.ranks) and _set(said.ranks) <= allowed) or set(said.links) & set(true["links"]) != set()
        ends = set(true["hosts"])
        return (bool(said.hosts) and set(said.hosts) <= ends) or any(all(end in link for end in ends) for link in said.links)
    if truth["class"] == "pipeline_stage":
        return cause.class_ == "host" or not said.stages or set(said.stages) <= set(true["stages"])
    return True


def _names_waiter(cause: Cause, truth: dict[str, Any]) -> bool:
    if cause.class_ not in PLACED or not cause.suspects.ranks:
        return False
    innocent = _set(truth["waiters"])
    for true in truth["causes"]:
        innocent -= _set(true["suspects"]["ranks"]) | _set(true.get("lookalikes", ""))
    return bool(_set(cause.suspects.ranks) & innocent)

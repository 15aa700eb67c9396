"""The headline: one sentence for a person at 3 a.m. who, what, how sure, what to do."""

from __future__ import annotations

from eroica.localizer.frame import Frame
from eroica.localizer.judgement import Judgement
from eroica.localizer.playbook import Leaf
from eroica.schemas.verdicts import Cause, Status

MAX_NAME = 100
_CLASS_WORDS = {
    "worker": ("is slow", "are slow"),
    "host": ("is slow as its host is", "are slow, and are most of their host"),
    "hang": ("stands elsewhere than the rest of the stuck job", "stand elsewhere than the rest of the stuck job"),
}
"""Of one rank, of several."""


def headline(frame: Frame, status: Status, causes: list[Cause], judgement: Judgement, leaf: Leaf | None = None) -> str:
    """One sentence; names from the job are cut, never interpreted. *leaf* is the fault of the first cause."""
    known = f": {leaf.signature.about}" if leaf is not None else ""
    job = frame.request.job[:MAX_NAME]
    covered = f"{frame.size or len(frame.stacks)} of {frame.expected.size} ranks"
    if status == "culprit_found":
        root = causes[0]
        one = root.suspects.ranks.isdigit()
        who = f"{'rank' if one else 'ranks'} {root.suspects.ranks[:MAX_NAME]}"
        on = f" on {', '.join(root.suspects.hosts[:3])}" if root.suspects.hosts else ""
        doing = f" in {root.functions[0][:MAX_NAME]}" if root.functions else ""
        more = f"; {len(causes) - 1} more" if len(causes) > 1 else ""
        single, several = _CLASS_WORDS.get(root.class_, (f"shows {root.class_}", f"show {root.class_}"))
        word = single if one else several
        waits = "; the others wait" if judgement.waiters.size else ""
        return f"{job}: {who}{on} {word}{doing}{known}{more}{waits} ({root.confidence:.0%} sure); {root.action.text}"
    if status == "shared_cause":
        return (
            f"{job}: no single place is at fault; {causes[0].class_.replace('_', ' ')}{known} ({causes[0].confidence:.0%} sure)"
        )
    if status == "insufficient_data":
        why = f": {judgement.notes[0][:300]}" if judgement.notes and not judgement.comparable else ""
        return f"{job}: cannot tell, {covered} answered{why}"
    return f"{job}: nobody is at fault as far as {covered} show"

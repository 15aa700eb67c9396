"""The headline: one sentence for a person at 3 a.m. who, what, how sure, what to do."""

from __future__ import annotations

from eroica.localizer.frame import Frame
from eroica.localizer.judgement import MIN_COVERAGE, Judgement
from eroica.localizer.playbook import Leaf
from eroica.schemas.ranks import say_ranks
from eroica.schemas.verdicts import Cause, Status
from eroica.schemas.wording import say_share

MAX_NAME = 100
_CLASS_WORDS = {
    "worker": ("is slow", "are slow"),
    "host": ("is slow as its host is", "are slow, and are most of their host"),
    "link": ("has a slow link", "have slow links"),
    "hang": ("stands elsewhere than the rest of the stuck job", "stand elsewhere than the rest of the stuck job"),
}
"""Of one rank, of several."""
_SHARED_WORDS = {
    "fabric": "transfers are slow in many places",
    "pipeline_stage": "the pipeline's stages have unequal work",
    "data_imbalance": "the replicas have unequal work",
    "software_pause": "the ranks pause",
    "whole_job": "the job is slower than its own past",
    "unknown": "what is slow is unknown",
}


def headline(
    frame: Frame,
    status: Status,
    causes: list[Cause],
    judgement: Judgement,
    leaf: Leaf | None = None,
    *,
    suspicion: bool = False,
) -> str:
    """One sentence; names from the job are cut, never interpreted.

    :param leaf: the fault of the first cause.
    :param suspicion: something was seen that is not enough to accuse anybody; the notes tell what.
    """
    known = f": {leaf.signature.about}" if leaf is not None else ""
    sure = f"({say_share(causes[0].confidence)} sure)" if causes else ""
    job = frame.request.job[:MAX_NAME]
    covered = f"{frame.size or len(frame.stacks)} of {frame.expected.size} ranks"
    if status == "culprit_found":
        root = causes[0]
        doing = f" in {root.functions[0][:MAX_NAME]}" if root.functions else ""
        more = f"; {len(causes) - 1} more" if len(causes) > 1 else ""
        waits = "; the others wait" if judgement.waiters.size else ""
        return f"{job}: {_who(root)}{doing}{known}{more}{waits} {sure}; {root.action.text}"
    if status == "shared_cause":
        root = causes[0]
        what = _SHARED_WORDS.get(root.class_, root.class_)
        stages = f", stage {', '.join(str(s) for s in root.suspects.stages[:8])} most" if root.class_ == "pipeline_stage" else ""
        doing = f" ({root.functions[0][:MAX_NAME]})" if root.functions else ""
        more = f"; {len(causes) - 1} more" if len(causes) > 1 else ""
        if root.class_ == "unknown":
            return f"{job}: slower than before, and nothing tells where{more} {sure}; {root.action.text}"
        return f"{job}: no single place is at fault; {what}{stages}{doing}{known}{more} {sure}; {root.action.text}"
    if status == "insufficient_data":
        seen = frame.size or len(frame.stacks)
        told = "too few" if 0 < seen < MIN_COVERAGE * frame.expected.size else judgement.why or "".join(judgement.notes[:1])
        why = f": {told[:300]}" if told and (told == "too few" or not judgement.comparable) else ""
        return f"{job}: cannot tell, {covered} answered{why}"
    if suspicion:
        return f"{job}: nobody is accused; what {covered} show is not enough to tell a fault from chance"
    return f"{job}: nobody is at fault as far as {covered} show"


def _who(root: Cause) -> str:
    """The suspects, and what is wrong with them: ranks where there are any, else links, else hosts."""
    suspects = root.suspects
    single, several = _CLASS_WORDS.get(root.class_, (f"shows {root.class_}", f"show {root.class_}"))
    hosts = ", ".join(suspects.hosts[:3])[:MAX_NAME]
    if suspects.ranks:
        one = suspects.ranks.isdigit()
        on = f" on {hosts}" if hosts else ""
        return f"{say_ranks(suspects.ranks, MAX_NAME)}{on} {single if one else several}"
    if suspects.links:
        return f"the link {', '.join(suspects.links[:3])[:MAX_NAME]} is slow"
    return f"{'host' if len(suspects.hosts) == 1 else 'hosts'} {hosts} {single if len(suspects.hosts) == 1 else several}"

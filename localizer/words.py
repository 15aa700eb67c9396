"""The headline: one sentence for a person at 3 a.m. who, what, how sure, what to do."""

from __future__ import annotations

import re

import msgspec

from eroica.localizer.frame import Frame
from eroica.localizer.judgement import MIN_COVERAGE, Judgement
from eroica.localizer.playbook import Leaf
from eroica.schemas.ranks import format_ranks, parse_ranks, say_ranks
from eroica.schemas.verdicts import Cause, Status, Suspects, is_same_again
from eroica.schemas.wording import say_count, say_share

MAX_NAME = 100
REPEATED = 2 / 3
"""Share of the words of a clause beyond which it says nothing new."""
_SMALL_WORDS = {"from", "into", "more", "than", "that", "their", "them", "there", "these", "they", "this", "what", "with"}
_CLASS_WORDS = {
    "worker": ("is slow", "are slow"),
    "host": ("is slow, as its host is,", "are slow"),
    "link": ("has a slow link", "have slow links"),
    "hang": ("stands elsewhere than the rest of the stuck job,", "stand elsewhere than the rest of the stuck job,"),
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
        root, others = _together(causes)
        sure = f"({say_share(root.confidence)} sure)"
        who = f"{_who(root, frame)} in {_frames(root.functions[0])}" if root.functions else _who(root, frame).rstrip(",")
        more = f"; {say_count(others, 'more cause')}" if others else ""
        waits = "; the others wait" if judgement.waiters.size else ""
        return _with_advice(f"{job}: {who}{known}{more}{waits} {sure}", root.action.text)
    if status == "shared_cause":
        root = causes[0]
        what = _SHARED_WORDS.get(root.class_, root.class_)
        stages = f", stage {', '.join(str(s) for s in root.suspects.stages[:8])} most" if root.class_ == "pipeline_stage" else ""
        doing = f" ({_frames(root.functions[0])})" if root.functions else ""
        more = f"; {say_count(len(causes) - 1, 'more cause')}" if len(causes) > 1 else ""
        if root.class_ == "unknown":
            return f"{job}: slower than before, and nothing tells where{more} {sure}; {root.action.text}"
        said = f"{job}: no single place is at fault; {what}{stages}{doing}{known}{more} {sure}"
        return _with_advice(said, root.action.text)
    if status == "insufficient_data":
        seen = frame.size or len(frame.stacks)
        told = "too few" if 0 < seen < MIN_COVERAGE * frame.expected.size else judgement.why or "".join(judgement.notes[:1])
        why = f": {told[:300]}" if told and (told == "too few" or not judgement.comparable) else ""
        return f"{job}: cannot tell, {covered} answered{why}"
    if suspicion:
        return f"{job}: nobody is accused; what {covered} show is not enough to tell a fault from chance"
    return f"{job}: nobody is at fault as far as {covered} show"


def _together(causes: list[Cause]) -> tuple[Cause, int]:
    """The first cause in all places where the same is wrong, at the least of their confidences; how many others there are."""
    root = causes[0]
    alike = [cause for cause in causes if is_same_again(root, cause)]
    if len(alike) == 1:
        return root, len(causes) - 1
    places = [cause.suspects for cause in alike]
    suspects = Suspects(
        ranks=format_ranks(parse_ranks(",".join(place.ranks for place in places if place.ranks))),
        hosts=sorted({host for place in places for host in place.hosts}),
        links=sorted({link for place in places for link in place.links}),
        stages=sorted({stage for place in places for stage in place.stages}),
    )
    least = min(cause.confidence for cause in alike)
    return msgspec.structs.replace(root, suspects=suspects, confidence=least), len(causes) - len(alike)


def _frames(function: str) -> str:
    """As many frames as fit, innermost first and whole; one that only repeats the name of the one before says nothing."""
    frames = function.split(" < ")
    own = [f for n, f in enumerate(frames) if n == 0 or f.rpartition(":")[2].strip() != frames[n - 1].rpartition(":")[2].strip()]
    shown = own[0][:MAX_NAME]
    for frame in own[1:]:
        if len(shown) + len(frame) + 3 > MAX_NAME:
            break
        shown += f" < {frame}"
    return shown


def _with_advice(said: str, advice: str) -> str:
    """What is wrong and what to do; a first clause of *advice* that says the same once more is left out."""
    first, _, rest = advice.partition("; ")
    words = _telling(first)
    again = rest and words and len(words & _telling(said)) > REPEATED * len(words)
    return f"{said}; {rest if again else advice}"


def _telling(text: str) -> set[str]:
    return {word for word in re.findall(r"[a-z]{4,}", text.lower()) if word not in _SMALL_WORDS}


def _who(root: Cause, frame: Frame) -> str:
    """The suspects, and what is wrong with them: ranks where there are any, else links, else hosts."""
    suspects = root.suspects
    single, several = _CLASS_WORDS.get(root.class_, (f"shows {root.class_}", f"show {root.class_}"))
    hosts = ", ".join(suspects.hosts[:3])[:MAX_NAME]
    if suspects.ranks:
        one = suspects.ranks.isdigit()
        most = ""
        if root.class_ == "host" and not one:
            most = "all of " if len(parse_ranks(suspects.ranks)) == frame.ranks_on(set(suspects.hosts)).size else "most of "
        on = f" ({most}{hosts})" if hosts and most else f" on {hosts}" if hosts else ""
        return f"{say_ranks(suspects.ranks, MAX_NAME)}{on} {single if one else several}"
    if suspects.links:
        return f"the link {', '.join(suspects.links[:3])[:MAX_NAME]} is slow"
    return f"{'host' if len(suspects.hosts) == 1 else 'hosts'} {hosts} {single if len(suspects.hosts) == 1 else several}"

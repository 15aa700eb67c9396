"""A folder of traces, one a rank, through the same cores as online: many files in, one verdict out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from eroica.localizer.core import LocalizerCore
from eroica.offline.timelines import diagnose_timeline, timeline_in
from eroica.producers.trace.folder import Found, one_run, trace_files
from eroica.producers.trace.reader import read_trace
from eroica.producers.trace.settings import SummarySettings
from eroica.producers.trace.summarise import Extras, identity_from_trace, summarise_trace
from eroica.schemas.control import ProfileRequest
from eroica.schemas.errors import InvalidInput
from eroica.schemas.groups import GroupChunk
from eroica.schemas.ids import stable_id
from eroica.schemas.outputs import InputRef
from eroica.schemas.ranks import MAX_RANK, format_ranks
from eroica.schemas.settings import EroicaSettings
from eroica.schemas.summaries import CloseClass, Expectation, Summary
from eroica.schemas.verdicts import Verdict
from eroica.streams.collect import GroupCore

OFFLINE = "offline"
CLASS = "all"
SOURCE = "none"

Tell = Callable[[str, int, int], None]
"""What is being read, how many are done, how many there are."""


@dataclass(frozen=True, slots=True)
class Unread:
    """A file that gave no summary, and why."""

    path: Path
    why: str


@dataclass(frozen=True)
class Diagnosis:
    """The verdict and what it was made from."""

    verdict: Verdict
    files: int
    unread: list[Unread]


def diagnose(folder: Path, settings: EroicaSettings, tell: Tell = lambda _what, _done, _all: None) -> Diagnosis:
    """Read every trace under *folder* and judge them as one request.

    Memory holds one trace at a time. The same files give the same verdict, byte for byte, wherever the folder stands.

    :raises InvalidInput: no folder, no readable trace, a trace without a rank, or a rank twice in one run.
    """
    timeline = timeline_in(folder)
    if timeline is not None:
        return Diagnosis(diagnose_timeline(timeline, settings), 1, [])
    files = trace_files(folder)
    found: list[Found] = []
    summaries: dict[Path, Summary] = {}
    unread: list[Unread] = []
    for done, path in enumerate(files):
        tell(path.name, done, len(files))
        try:
            trace = read_trace(path)
            found.append(Found.of(trace, path))
            who = identity_from_trace(trace, path, job=OFFLINE, rank=max(found[-1].rank, 0))
            summaries[path] = summarise_trace(trace, who, SummarySettings(), Extras())
        except InvalidInput as error:
            unread.append(Unread(path, error.what))
            if found and found[-1].path == path:
                found.pop()
    tell("", len(files), len(files))
    if not summaries:
        first = unread[0]
        raise InvalidInput(
            f"none of {len(files)} files is a trace that can be read; the first: {first.why}", where=str(first.path)
        )
    chosen, notes = one_run(found)
    kept = [summaries[trace.path] for trace in chosen]
    notes += [f"{one.path.name} gave nothing: {one.why}" for one in unread]
    return Diagnosis(judge(kept, settings, notes), len(files), unread)


def judge(summaries: list[Summary], settings: EroicaSettings, notes: list[str] | None = None) -> Verdict:
    """Summaries of one window, ascending by rank, through group and localizer.

    :raises InvalidInput: they contradict each other.
    """
    world = max([s.who.world_size for s in summaries] + [s.who.rank + 1 for s in summaries])
    if world > MAX_RANK + 1:
        raise InvalidInput(f"a world of {world} ranks is more than a job can have", where=f"rank {summaries[-1].who.rank}")
    request = ProfileRequest(
        request=stable_id(OFFLINE, *(f"{s.who.rank}:{s.ended_at_us}:{s.window_us}" for s in summaries)),
        job=OFFLINE,
        run_id=OFFLINE,
        reason="offline",
        start_step=min(s.first_step for s in summaries),
        steps=max(1, max(s.last_step for s in summaries) - min(s.first_step for s in summaries) + 1),
        world_size=world,
        classes={CLASS: format_ranks(range(world))},
        topology_source=SOURCE,
        issued_at_us=min(s.ended_at_us for s in summaries),
        deadline_ms=1,
        with_stack=False,
    )
    group, localizer = GroupCore(settings.group), LocalizerCore(settings.localize)
    aligned = [
        msgspec.structs.replace(s, who=msgspec.structs.replace(s.who, request=request.request, cls=CLASS)) for s in summaries
    ]
    messages: list[Expectation | Summary | CloseClass] = [
        Expectation(cls=CLASS, ranks=request.classes[CLASS], classes=[CLASS], request=request),
        *aligned,
        CloseClass(job=OFFLINE, request=request.request, cls=CLASS, closed_by="deadline"),
    ]
    chunks: list[GroupChunk] = []
    for offset, message in enumerate(messages):
        for output in group.feed(message, InputRef("summaries", 0, offset)):
            if isinstance(output.message, GroupChunk):
                chunks.append(output.message)
    for offset, chunk in enumerate(chunks):
        for output in localizer.feed(chunk, InputRef("groups", 0, offset)):
            if isinstance(output.message, Verdict):
                return _with_notes(output.message, notes or [])
    raise InvalidInput("the summaries gave no group", where=request.request)


def _with_notes(verdict: Verdict, notes: list[str]) -> Verdict:
    coverage = msgspec.structs.replace(verdict.coverage, notes=[*notes[:20], *verdict.coverage.notes])
    provenance = msgspec.structs.replace(verdict.provenance, inputs={})
    return msgspec.structs.replace(verdict, coverage=coverage, provenance=provenance)

"""Traces of many ranks through the same cores as online: a folder or a file in, one verdict out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from eroica.localizer.judged import Watcher, nobody
from eroica.offline.align import EPOCH_US, align_steps, missing_note, pair_notes, run_notes, when
from eroica.offline.doubts import cannot_tell, less_sure
from eroica.offline.judge import judge
from eroica.offline.layout import GivenLayout, groups_of, placed, view_of
from eroica.offline.matched import match_steps
from eroica.offline.recording import refuse_recording
from eroica.offline.stages import pipeline_groups
from eroica.offline.timelines import diagnose_timeline, timeline_in
from eroica.producers.trace.checks import device_unseen
from eroica.producers.trace.filenames import folder_of_place, step_of_place
from eroica.producers.trace.folder import Found, name_ranks, one_run, unknown_rank
from eroica.producers.trace.frontend import Opened, open_workers
from eroica.producers.trace.identity import process_groups
from eroica.producers.trace.listing import Listing, RankRule, list_traces, relative_to
from eroica.producers.trace.nodes import JobSigns, number_nodes
from eroica.producers.trace.pulse import TRUST, Pulse, borrowed_steps, pulse_of
from eroica.producers.trace.settings import SummarySettings
from eroica.producers.trace.steps import Steps, find_steps
from eroica.producers.trace.summarise import STEP_NOTES, identity_from_trace, summarise
from eroica.schemas.errors import EroicaError, InvalidInput, TopologyError
from eroica.schemas.jobs import ProcessGroup
from eroica.schemas.settings import EroicaSettings
from eroica.schemas.summaries import Summary
from eroica.schemas.verdicts import Verdict
from eroica.schemas.wording import say_count
from eroica.topology.jobview import JobView

OFFLINE = "offline"
MAX_LENDERS = 16
"""Workers whose steps are tried for one that has none of its own."""
MATCHED = 0.8
"""Highest confidence where ranks' steps were matched by their collectives alone."""
MAX_NAMED = 10
"""Files that gave nothing and are named in the verdict."""
FIRST_DATE = when(EPOCH_US)
"""What is earlier is no time of day: the traces count from a start of their own."""

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


@dataclass(frozen=True)
class Told:
    """What the user says of the traces."""

    ranks: RankRule = field(default_factory=RankRule)
    layout: GivenLayout | None = None
    job: str = ""
    """Which of several runs in the folder."""


@dataclass(frozen=True, slots=True)
class _Worker:
    found: Found
    summary: Summary
    groups: list[ProcessGroup]
    world: int
    """Ranks of the job as the trace tells; 0 if it does not."""
    pulse: Pulse
    told: JobSigns
    """What it tells of its job beside its rank."""
    unseen: bool
    """Whether it launched work of a device that it does not hold."""


def diagnose(
    source: Path,
    settings: EroicaSettings,
    tell: Tell = lambda _what, _done, _all: None,
    told: Told | None = None,
    watch: Watcher = nobody,
) -> Diagnosis:
    """Read every trace under *source*, or that file, and judge them as one request.

    Memory holds one trace at a time. The same files give the same verdict, byte for byte, wherever the folder stands.

    :param watch: told of what was judged; a timeline of operations is judged by other means.
    :raises InvalidInput: no folder, no readable trace, no trace with a rank, or a rank twice in one run.
    :raises UsageError: an option names a file or a run that is not there.
    :raises TopologyError: the layout that the user gives contradicts the traces.
    """
    told = told or Told()
    timeline = timeline_in(source)
    if timeline is not None:
        return Diagnosis(diagnose_timeline(timeline, settings), 1, [])
    refuse_recording(source)
    listing = list_traces(source)
    ranks = told.ranks.over(listing.files, listing.root)
    files, job = _of_job(listing, told.job)
    workers: list[_Worker] = []
    unread: list[Unread] = []
    for done, path in enumerate(files):
        tell(path.name, done, len(files))
        try:
            rank = ranks.of(path)
            workers += [_worker(opened, rank, source) for opened in open_workers(path)]
        except InvalidInput as error:
            unread.append(Unread(path, error.what))
    tell("", len(files), len(files))
    if not workers:
        first, one = unread[0], len(files) == 1
        none = "it is no trace" if one else f"none of {len(files)} files is a trace"
        the_first = "" if one else "; the first"
        raise InvalidInput(f"{none} that can be read{the_first}: {first.why}", where=str(first.path))
    notes = listing.notes
    if len(files) < len(listing.files):
        left = len(listing.files) - len(files)
        notes.append(f"{say_count(left, 'trace')} outside of {told.job} {'was' if left == 1 else 'were'} not read")
    named, said = name_ranks([w.found for w in workers])
    notes += said
    named, said = number_nodes(named, [w.told for w in workers], listing.root)
    notes += said
    workers = [replace(w, found=f, summary=_as_rank(w.summary, f.rank, f.node)) for f, w in zip(named, workers, strict=True)]
    if any(one.rank >= 0 for one in named):  # of several, those that nothing names are left out; alone they are asked for
        unread += [Unread(one.path, _of_no_rank(one)) for one in named if one.rank < 0]
        named = [one for one in named if one.rank >= 0]
    chosen, said = one_run(named, listing.root, job)
    notes += said
    of = {(w.found.path, w.found.place): w for w in workers}
    kept = [of[f.path, f.place] for f in chosen]
    for i, lenders in _borrowers(kept):
        tell(kept[i].found.path.name, len(files), len(files))
        kept[i] = _cut_alike(kept[i], lenders)
    ranks_kept = [w.found.rank for w in kept]
    apart = run_notes(ranks_kept, [w.world for w in kept], [(w.found.start_us, w.found.end_us) for w in kept])
    matched: list[str] = []

    def match(summaries: Sequence[Summary]) -> tuple[list[Summary], list[str]]:
        found, told_so = match_steps(summaries, [w.pulse for w in kept])
        matched.extend(told_so)
        return found, told_so

    summaries, said = align_steps([w.summary for w in kept], match)
    # Neither numbers nor clocks tell which steps were the same: then that nobody stands out means nothing.
    doubtful = bool(apart) and len({tuple(step.step for step in s.steps) for s in summaries}) > 1
    notes += [*apart, *said, *_steps_guessed(summaries)]
    view, said = _view(summaries, {w.found.rank: w.groups for w in kept}, told.layout)
    notes += [*said, *missing_note([f.rank for f in chosen], view.world_size), *pair_notes(summaries, view.world_size)]
    notes += [f"{one.path.name} gave nothing: {one.why}" for one in unread[:MAX_NAMED]]
    if len(unread) > MAX_NAMED:
        notes.append(f"{say_count(len(unread) - MAX_NAMED, 'more file')} gave nothing")
    verdict = judge(placed(summaries, view), settings, view, watch)
    if matched:
        verdict = less_sure(verdict, max(MATCHED, settings.localize.accuse_confidence))
    if verdict.status == "no_fault_found":
        if doubtful:
            verdict = cannot_tell(verdict, "neither numbers nor clocks tell which steps of the ranks were the same")
        elif len(kept) > 1 and all(w.unseen for w in kept) and not any(s.communicators for s in summaries):
            verdict = cannot_tell(verdict, "the work of the devices was not recorded, nor are collectives: who waits is unknown")
    return Diagnosis(_with_notes(verdict, notes), len(files), unread)


def _steps_guessed(summaries: list[Summary]) -> list[str]:
    """How steps were found where the traces do not mark them: a comparison by step is worth what they are."""
    told = Counter(note for s in summaries for note in s.notes if note in STEP_NOTES.values())
    return [f"{note} ({count} of {len(summaries)} ranks)" for note, count in sorted(told.items())]


def _of_no_rank(found: Found) -> str:
    error = unknown_rank(found)
    return f"{error.what}; {error.do}"


def _of_job(listing: Listing, job: str) -> tuple[list[Path], str]:
    """The files whose path names the run that is asked for, so that no others are read; else all, and the name to choose by."""
    if not job:
        return listing.files, ""
    places = [(path, relative_to(path, listing.root)) for path in listing.files]
    named = [path for path, place in places if job in step_of_place(place) or job in folder_of_place(place)]
    exact = [path for path, place in places if job in (step_of_place(place), folder_of_place(place))]
    return (exact or named, "") if named else (listing.files, job)


def _worker(opened: Opened, rank: int | None, root: Path) -> _Worker:
    found = Found.of(opened, rank, root)
    steps = find_steps(opened.trace)
    summary = _summary(opened, max(found.rank, 0), steps)
    told = process_groups(opened.trace)
    largest = max((int(g["size"]) for g in told.values()), default=0)
    members = tuple(tuple(g["ranks"]) for g in told.values() if g["ranks"])
    signs = JobSigns(opened.told.world_size or largest, opened.told.host, members)
    return _Worker(
        found, summary, groups_of(told), opened.told.world_size, pulse_of(opened.trace, steps), signs, device_unseen(opened.trace)
    )


def _summary(opened: Opened, rank: int, steps: Steps) -> Summary:
    who = identity_from_trace(opened.trace, opened.path, job=OFFLINE, rank=rank, told=opened.told)
    return summarise(opened.path, who, SummarySettings(), opened.extras, trace=opened.trace, told=opened.told, steps=steps)


def _borrowers(workers: list[_Worker]) -> list[tuple[int, list[Pulse]]]:
    """Workers whose steps are told worse than others', and the pulses of some of these, the nearest ranks first."""
    trust = [TRUST.index(w.pulse.steps.source) if w.pulse.steps.source in TRUST else -1 for w in workers]
    best = min((t for t in trust if t >= 0), default=0)
    lenders = [w for w, t in zip(workers, trust, strict=True) if t == best]

    def near(rank: int) -> list[Pulse]:
        return [w.pulse for w in sorted(lenders, key=lambda w: abs(w.found.rank - rank))[:MAX_LENDERS]]

    return [(i, near(w.found.rank)) for i, (w, t) in enumerate(zip(workers, trust, strict=True)) if t > best]


def _cut_alike(worker: _Worker, lenders: list[Pulse]) -> _Worker:
    """*worker* with its steps cut as those of others, where its collectives fit theirs; else as it is. Reads its file again."""
    for opened in open_workers(worker.found.path):
        if opened.place == worker.found.place:
            steps = borrowed_steps(opened.trace, worker.pulse, lenders)
            if steps is not None:
                return replace(worker, summary=_summary(opened, worker.found.rank, steps))
            break
    return worker


def _as_rank(summary: Summary, rank: int, node: str = "") -> Summary:
    """*summary* under this rank, and on the host that its folder names where the trace names none."""
    who = summary.who
    host = who.host or node
    if rank in (who.rank, -1) and host == who.host:
        return summary
    who = msgspec.structs.replace(who, rank=rank, host=host, world_size=max(who.world_size, rank + 1))
    return msgspec.structs.replace(summary, who=who)


def _view(
    summaries: list[Summary], groups: dict[int, list[ProcessGroup]], given: GivenLayout | None
) -> tuple[JobView, list[str]]:
    """The job's shape. Where the traces' own groups contradict each other, ranks are compared without them; where they
    contradict the user, that is an error.
    """
    told, said = (groups, []) if given is not None else pipeline_groups(summaries, groups)
    try:
        return view_of(summaries, told, given), said
    except TopologyError as error:
        if given is not None:
            raise
        return view_of(summaries, {}, None), [f"the traces' process groups are not used: {_plain(error)}"]


def _plain(error: EroicaError) -> str:
    return error.what[:300]


def _with_notes(verdict: Verdict, notes: list[str]) -> Verdict:
    own = [note for note in verdict.coverage.notes if not note.startswith("class ") or " was closed by " not in note]
    coverage = msgspec.structs.replace(verdict.coverage, notes=[*notes[:30], *own])
    provenance = msgspec.structs.replace(verdict.provenance, inputs={})
    latest = verdict.event_time if verdict.event_time >= FIRST_DATE else ""
    return msgspec.structs.replace(verdict, event_time=latest, coverage=coverage, provenance=provenance)

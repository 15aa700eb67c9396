"""The localizer as a pure state machine: chunks of groups in, one verdict a request out."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from eroica.localizer.actions import Advice
from eroica.localizer.build import build_frame
from eroica.localizer.feedback import Listener, nothing_heard
from eroica.localizer.frame import Frame
from eroica.localizer.judged import Judged, Watcher, nobody
from eroica.localizer.judgement import Judgement
from eroica.localizer.own import Past
from eroica.localizer.packed import PackedChunk, pack
from eroica.localizer.past import baselines_of
from eroica.localizer.playbook import load_playbook
from eroica.localizer.profiles import HealthyPast, Recall, latest
from eroica.localizer.rules import RULE_SETS
from eroica.localizer.stacks import judge_stacks
from eroica.localizer.verdict import make_verdict
from eroica.schemas.errors import SchemaError
from eroica.schemas.groups import GroupChunk
from eroica.schemas.memory import Baseline
from eroica.schemas.outputs import InputRef, Output
from eroica.schemas.ranks import RankRanges
from eroica.schemas.settings import LocalizeSettings
from eroica.schemas.summaries import MAX_SOURCES
from eroica.schemas.topics import message_key
from eroica.schemas.verdicts import Verdict

MAX_OPEN = 1_024
"""Requests that may be incomplete at once; beyond, the oldest is judged with what there is."""
LOST_CLASS_US = 3_600_000_000
"""A class that is not closed so long after its deadline, by the event time of later requests of its job, went with its grouping.

The group stage closes every class, also of nobody, so this is the last resort. An hour lies beyond any redelivery, so that the
order in which a replay sees the partitions does not matter. Other jobs' requests say nothing: their clocks may be far off."""
MAX_PUBLISHED = 100_000
"""Request ids remembered as published."""
HEALTHY_REASONS = frozenset({"scheduled", "manual"})
"""Profiles asked for without a complaint: where they show nobody at fault, they become the job's healthy past."""
WHOLE_COVERAGE = 0.9
"""A healthy profile needs this share of the workers."""


@dataclass
class _Open:
    """A request whose classes are not all here."""

    job: str
    classes: frozenset[str]
    lost_at_us: int
    """Event time at which it is judged without the classes that did not come."""
    chunks: dict[tuple[str, int], PackedChunk] = field(default_factory=dict)
    first: dict[int, int] = field(default_factory=dict)
    """Partition → offset of the first chunk."""
    size: dict[str, int] = field(default_factory=dict)

    def complete(self) -> bool:
        """Whether every chunk of every class is here."""
        have: dict[str, int] = {}
        for cls, _ in self.chunks:
            have[cls] = have.get(cls, 0) + 1
        return all(have.get(cls, 0) == self.size.get(cls, -1) for cls in self.classes)


class LocalizerCore:
    """Collects the classes of each request and judges it once all are here.

    Guarantees: one verdict a request, however often its chunks come; the verdict is a function of the content of the chunks
    and of the healthy profile that it names among its inputs, not of their order. A request in ``published`` is never judged
    again.
    """

    def __init__(
        self,
        settings: LocalizeSettings,
        published: tuple[str, ...] = (),
        *,
        listen: Listener = nothing_heard,
        watch: Watcher = nobody,
        past: HealthyPast | None = None,
        recall: Recall = latest,
        learn: bool = True,
    ) -> None:
        """Start without requests.

        :param listen: what people said of remedies; the verdict holds the counts, and which messages they are from.
        :param watch: told of each request that was judged, for explanations.
        :param past: the healthy profiles to judge with, which others may add to; its own without.
        :param recall: which of them a request is held against, where that was decided before.
        :param learn: take in the healthy profiles that are found here. Without it what is found later decides nothing.
        """
        self._settings = settings
        self._listen, self._watch = listen, watch
        self.playbook = load_playbook(settings.playbook_dir)
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._published: OrderedDict[str, None] = OrderedDict((request, None) for request in published)
        self._past = HealthyPast() if past is None else past
        self._recall, self._learn = recall, learn
        self.repeated = 0
        """Chunks that changed nothing."""

    def remember(self, baseline: Baseline) -> None:
        """Take in a healthy profile from the topic; repetitions change nothing."""
        self._past.add(baseline)

    def feed(self, chunk: GroupChunk, ref: InputRef) -> list[Output]:
        """Take in a chunk.

        :raises SchemaError: the chunk contradicts itself.
        """
        request = chunk.request.request
        if request in self._published:
            self.repeated += 1
            return []
        _check(chunk, ref)
        entry = self._open.get(request)
        if entry is None:
            lost_at_us = chunk.request.issued_at_us + 1_000 * chunk.request.deadline_ms + LOST_CLASS_US
            entry = self._open[request] = _Open(chunk.request.job, frozenset(chunk.classes), lost_at_us)
        entry.first.setdefault(ref.partition, ref.offset)
        if (chunk.cls, chunk.chunk) in entry.chunks:
            self.repeated += 1
            return []
        entry.chunks[chunk.cls, chunk.chunk] = pack(chunk)
        entry.size.setdefault(chunk.cls, chunk.chunks)
        outputs = self._judge(request) if entry.complete() else []
        outputs += self._judge_lost(ref.partition, chunk.request.issued_at_us, chunk.request.job)
        while len(self._open) > MAX_OPEN:
            outputs += self._judge(next(iter(self._open)))
        return outputs

    def advance(self, partition: int, event_time_us: int) -> list[Output]:
        """*partition* has come so far in time: judge the requests on it whose classes are lost by then."""
        return self._judge_lost(partition, event_time_us)

    def mark_published(self, request: str) -> None:
        """Somebody published the verdict of *request*: forget it."""
        self._published[request] = None
        self._published.move_to_end(request)
        self._open.pop(request, None)
        while len(self._published) > MAX_PUBLISHED:
            self._published.popitem(last=False)

    def low_water(self, partition: int) -> int | None:
        """Offset of the first chunk that an open request still needs; what lies before may be committed."""
        return min((entry.first[partition] for entry in self._open.values() if partition in entry.first), default=None)

    def forget(self, partition: int) -> None:
        """The partition went to somebody else: drop the open requests that stand on it."""
        for request in [r for r, entry in self._open.items() if partition in entry.first]:
            del self._open[request]

    def _judge_lost(self, partition: int, now_us: int, job: str | None = None) -> list[Output]:
        """Of one partition only, in which order is given: other partitions are read faster or slower. Of one job, if given."""
        lost = [
            request
            for request, entry in self._open.items()
            if partition in entry.first and entry.lost_at_us < now_us and job in (None, entry.job)
        ]
        return [output for request in lost for output in self._judge(request)]

    def _judge(self, request: str) -> list[Output]:
        # Taken out first: what cannot be judged must not be tried again with every message that follows.
        entry = self._open.pop(request)
        frame = build_frame(entry.chunks.values())
        past = self._past_of(frame)
        if frame.request.mode == "stacks":
            judgement = judge_stacks(frame)
        else:
            judgement = RULE_SETS[self._settings.rules](frame, self._settings, past)
        heard = self._listen(frame.request)
        advice = Advice(self.playbook, heard.counts, heard.inputs)
        verdict: Verdict = make_verdict(frame, judgement, self._settings, advice, past)
        self._watch(Judged(frame, past, judgement, advice, self._settings, verdict))
        self.mark_published(request)
        outputs = [Output(key=message_key(verdict.job), message=verdict, event_time_us=frame.event_time_us)]
        for baseline in self._healthy(frame, past, judgement):
            if self._learn:
                self._past.add(baseline)
            outputs.append(Output(message_key(baseline.job, baseline.cls), baseline, frame.event_time_us))
        return outputs

    def _past_of(self, frame: Frame) -> Past | None:
        """The past for the rules that know what to do with it."""
        if frame.request.mode != "profile" or self._settings.rules != "eroica":
            return None
        return self._past.before(frame, self._recall(frame.request))

    def _healthy(self, frame: Frame, past: Past | None, judgement: Judgement) -> list[Baseline]:
        """*frame* as the job's healthy past, if it is fit: all is there, nobody is at fault among the peers, and the job is not
        slower than in its *past* either, else a slow job that a person profiles would become what is usual.
        """
        asked = frame.request.reason in HEALTHY_REASONS and frame.request.mode == "profile"
        if not asked or frame.coverage < WHOLE_COVERAGE or frame.size == 0:
            return []
        if past is not None and judgement.findings:
            return []
        if past is not None or self._settings.rules != "eroica":
            judgement = RULE_SETS["eroica"](frame, self._settings, None)
        if judgement.findings:
            return []
        found = baselines_of(frame)
        return found if {b.cls for b in found} == set(frame.request.classes) else []


def _check(chunk: GroupChunk, ref: InputRef) -> None:
    """Indices and lengths of the columns, before numpy trips over them.

    :raises SchemaError: with the table that is wrong.
    """
    where = f"{ref.topic}/{ref.partition}/{ref.offset}"
    if not 0 <= chunk.chunk < chunk.chunks or chunk.cls not in chunk.classes:
        raise SchemaError(f"chunk {chunk.chunk} of {chunk.chunks}, class {chunk.cls!r} is impossible", where=where)
    rows, functions, slots = len(chunk.workers), len(chunk.functions), len(chunk.slots)
    p, s, e, u, r = chunk.patterns, chunk.steps, chunk.executions, chunk.pauses, chunk.receive_waits
    tables: dict[str, tuple[list[list[int]], list[int], list[int]]] = {
        "patterns": (
            [p.row, p.function],
            [rows, functions],
            [len(c) for c in (p.function, p.beta, p.mu, p.sigma, p.total_us, p.exclusive_us, p.p50_us, p.p99_us, p.max_us)],
        ),
        "steps": ([s.row], [rows], [len(s.step), len(s.start_us), len(s.duration_us), *map(len, s.phases_us.values())]),
        "executions": (
            [e.row, e.slot],
            [rows, slots],
            [len(c) for c in (e.slot, e.step, e.start_us, e.duration_us, e.occurrence)],
        ),
        "pauses": ([u.row], [rows], [len(c) for c in (u.what, u.count, u.total_us, u.max_us)]),
        "receive waits": (
            [r.row, r.group],
            [rows, len(chunk.receive_groups)],
            [len(c) for c in (r.group, r.count, r.total_us, r.max_us)],
        ),
        "metrics": ([chunk.metrics.row], [rows], [len(c) for c in (chunk.metrics.name, chunk.metrics.mean)]),
        "slots": ([[slot.communicator for slot in chunk.slots]], [len(chunk.communicators)], []),
    }
    for name, (indices, limits, lengths) in tables.items():
        if any(length != len(indices[0]) for length in lengths):
            raise SchemaError(f"the columns of {name} differ in length", where=where)
        if any(column and not (min(column) >= 0 and max(column) < limit) for column, limit in zip(indices, limits, strict=True)):
            raise SchemaError(f"{name} point outside of their tables", where=where)
    try:
        sizes = [len(RankRanges.parse(group.sources)) for group in chunk.receive_groups]
    except SchemaError as error:
        raise SchemaError(f"the sources of receive waits: {error.what}", where=where) from error
    for group, total, longest in zip(r.group, r.total_us, r.max_us, strict=True):
        if not len(total) == len(longest) == sizes[group] <= MAX_SOURCES:
            raise SchemaError("receive waits do not match their sources", where=where)

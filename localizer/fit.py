"""A verdict within the size that was promised, whatever is in it; what is cut is said."""

from __future__ import annotations

import msgspec

from eroica.schemas.codec import encoded_size
from eroica.schemas.ranks import RankRanges
from eroica.schemas.topics import MAX_VERDICT_BYTES
from eroica.schemas.verdicts import Cause, Evidence, IsolationGroup, Suspects, Verdict

ROOM = 1_500
"""Bytes kept free for what the cutting says of itself."""
OFFSETS = 300
"""Characters of one partition's offsets that are worth their room."""
LIMITS = ((4_000, 64, 32), (1_000, 16, 16), (300, 8, 8), (100, 3, 4))
"""Steps of cutting: characters of a set or text, hosts and functions of a cause, causes."""


def fit(verdict: Verdict) -> Verdict:
    """*verdict* within ``MAX_VERDICT_BYTES``.

    In this order, each only as far as needed: offsets with gaps are shortened to the first and last; evidence is halved, down to
    eight items a cause; long sets of ranks, lists of hosts and texts are cut; evidence and notes are halved.
    """
    if encoded_size(verdict) <= MAX_VERDICT_BYTES:
        return verdict
    verdict = _short_offsets(verdict)
    before = sum(len(cause.evidence) for cause in verdict.causes)
    causes = len(verdict.causes)
    verdict = _halved(verdict, down_to=8)
    whole, said = verdict, list[str]()
    sizes: dict[str, int] = {}
    for text, names, most in LIMITS:
        if _small(verdict):
            break
        cut = _Cutter(text, names, sizes)
        verdict = cut.verdict(msgspec.structs.replace(whole, causes=whole.causes[:most]))
        said = cut.said
    verdict = _halved(verdict, down_to=0)
    if len(verdict.causes) < causes:
        said = [f"{len(verdict.causes)} of {causes} causes are listed", *said]
    left = sum(len(cause.evidence) for cause in verdict.causes)
    if left < before:
        said = [f"evidence was cut from {before} to {left} items to keep the verdict small", *said]
    return _with_notes(verdict, said)


class _Cutter:
    """Cuts what is long, and remembers what it was."""

    def __init__(self, text: int, names: int, sizes: dict[str, int]) -> None:
        self._text, self._names, self._sizes = text, names, sizes
        self.said: list[str] = []

    def verdict(self, verdict: Verdict) -> Verdict:
        replace = msgspec.structs.replace
        coverage, waiters = verdict.coverage, verdict.waiters
        return replace(
            verdict,
            headline=self.words(verdict.headline),
            causes=[self.cause(i, c) for i, c in enumerate(verdict.causes)],
            waiters=replace(waiters, ranks=self.ranks("waiters.ranks", waiters.ranks)),
            coverage=replace(
                coverage,
                missing=self.ranks("coverage.missing", coverage.missing),
                late=self.ranks("coverage.late", coverage.late),
                notes=[self.words(note) for note in coverage.notes],
            ),
        )

    def cause(self, number: int, cause: Cause) -> Cause:
        where = f"causes[{number}]"
        suspects, group = cause.suspects, cause.isolation_group
        return msgspec.structs.replace(
            cause,
            suspects=Suspects(
                ranks=self.ranks(f"{where}.suspects.ranks", suspects.ranks),
                hosts=self.names(f"{where}.suspects.hosts", suspects.hosts),
                links=self.names(f"{where}.suspects.links", suspects.links),
                stages=suspects.stages[: self._names],
            ),
            isolation_group=IsolationGroup(kind=group.kind, ranks=self.ranks(f"{where}.isolation_group.ranks", group.ranks)),
            functions=[self.words(name) for name in cause.functions[: self._names]],
            evidence=[self.evidence(item) for item in cause.evidence],
        )

    def evidence(self, item: Evidence) -> Evidence:
        return msgspec.structs.replace(
            item,
            metric=self.words(item.metric),
            subject=self.words(item.subject),
            rule=self.words(item.rule),
            compared_with=self.words(item.compared_with),
        )

    def words(self, text: str) -> str:
        return text if len(text) <= self._text else f"{text[: self._text]}…"

    def names(self, where: str, names: list[str]) -> list[str]:
        kept = [self.words(name) for name in names[: self._names]]
        if len(kept) < len(names):
            self.said.append(f"{where} names {len(kept)} of {len(names)}")
        return kept

    def ranks(self, where: str, text: str) -> str:
        """Whole ranges only, so that what is left is still a set of ranks."""
        if len(text) <= self._text:
            return text
        left = text[: self._text].rpartition(",")[0] or text.partition(",")[0]
        self.said.append(f"{where} names {self._size(left)} of {self._size(text)} ranks")
        return left

    def _size(self, text: str) -> int:
        """Number of ranks; the same long set stands in many places."""
        if text not in self._sizes:
            self._sizes[text] = len(RankRanges.parse(text))
        return self._sizes[text]


def _small(verdict: Verdict) -> bool:
    return encoded_size(verdict) <= MAX_VERDICT_BYTES - ROOM


def _halved(verdict: Verdict, down_to: int) -> Verdict:
    """Evidence of each cause halved until the verdict is small or none has more than *down_to* items."""
    keep = max((len(cause.evidence) for cause in verdict.causes), default=0)
    while keep > down_to and not _small(verdict):
        keep = max(keep // 2, down_to)
        causes = [msgspec.structs.replace(c, evidence=c.evidence[:keep]) for c in verdict.causes]
        verdict = msgspec.structs.replace(verdict, causes=causes)
    return verdict


def _with_notes(verdict: Verdict, said: list[str]) -> Verdict:
    """What was cut comes first among the notes, of which the last go until it fits."""
    told = [*said[:8], *([f"{len(said) - 8} further things were cut"] if len(said) > 8 else [])]
    notes = list(verdict.coverage.notes)
    cut: list[str] = []
    while True:
        coverage = msgspec.structs.replace(verdict.coverage, notes=[*told, *notes, *cut])
        result = msgspec.structs.replace(verdict, coverage=coverage)
        if not notes or encoded_size(result) <= MAX_VERDICT_BYTES:
            return result
        notes, cut = notes[: len(notes) // 2], ["further notes were cut"]


def _short_offsets(verdict: Verdict) -> Verdict:
    """Offsets with gaps as first and last: the gaps are messages of other jobs."""
    inputs = {
        place: f"{offsets.partition(',')[0].partition('-')[0]}..{offsets.rpartition(',')[2].rpartition('-')[2]}"
        if "," in offsets and len(offsets) > OFFSETS
        else offsets
        for place, offsets in verdict.provenance.inputs.items()
    }
    return msgspec.structs.replace(verdict, provenance=msgspec.structs.replace(verdict.provenance, inputs=inputs))

"""One verdict of a recording with the table behind each item of its evidence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from eroica.localizer.explain import Explained, explain_verdict
from eroica.localizer.judged import Judged
from eroica.offline.recording import Manifest
from eroica.offline.replay import State, replay
from eroica.schemas.errors import UsageError
from eroica.schemas.settings import EroicaSettings
from eroica.schemas.verdicts import Verdict

LAST = "last"
"""In place of an id: the verdict with the latest event time."""
MAX_IDS = 10


@dataclass(frozen=True)
class ExplainedVerdict:
    """A verdict as the recording leads to it, how it compares with the recorded one, and its evidence explained."""

    verdict: Verdict
    state: State
    items: list[Explained]

    @property
    def wrong(self) -> int:
        """Items that cannot be made again, or come out otherwise."""
        return sum(i.explanation is None or not i.explanation.agrees(i.evidence) for i in self.items)


def explain_recorded(directory: Path, manifest: Manifest, settings: EroicaSettings, verdict_id: str) -> ExplainedVerdict:
    """Replay the recording and explain the verdict *verdict_id* (or ``last``).

    :raises UsageError: the recording leads to no such verdict.
    :raises InvalidInput: the recording is broken.
    """
    kept: list[Judged] = []
    ids: list[str] = []

    def watch(judged: Judged) -> None:
        ids.append(judged.verdict.verdict_id)
        key = (judged.verdict.event_time, judged.verdict.verdict_id)
        later = not kept or key > (kept[0].verdict.event_time, kept[0].verdict.verdict_id)
        if judged.verdict.verdict_id == verdict_id or (verdict_id == LAST and later):
            kept[:] = [judged]

    result = replay(directory, manifest, settings, watch=watch)
    if not kept:
        known = ", ".join(ids[:MAX_IDS]) or "none"
        raise UsageError(
            "the recording leads to no verdict of this id", where=f"--explain {verdict_id[:100]}", do=f"it leads to: {known}"
        )
    [judged] = kept
    state = next(one.state for one in result.verdicts if one.verdict.verdict_id == judged.verdict.verdict_id)
    return ExplainedVerdict(judged.verdict, state, list(explain_verdict(judged)))

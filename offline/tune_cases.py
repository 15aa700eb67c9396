"""What tuning judges again and again: the frames of labelled recordings and trace folders, each made once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from eroica.localizer.judged import Judged
from eroica.localizer.rules import RULE_SETS
from eroica.localizer.stacks import judge_stacks
from eroica.localizer.verdict import whole_verdict
from eroica.offline import recording
from eroica.offline.diagnose import diagnose
from eroica.offline.labels import Label, simulated_label
from eroica.offline.replay import replay
from eroica.offline.score import Score, score
from eroica.offline.simulated import LABELS
from eroica.schemas.errors import InvalidInput, UsageError
from eroica.schemas.settings import EroicaSettings, LocalizeSettings

Tell = Callable[[str, int, int], None]
"""What is being read, how many are done, how many there are."""


@dataclass(frozen=True)
class Case:
    """One judged request with its truth."""

    name: str
    job: str
    """Runs of one job are never split between folds."""
    label: Label
    judged: Judged

    def scores(self, settings: LocalizeSettings, confidences: Sequence[float]) -> list[Score]:
        """What the verdict under *settings* is worth, with each of *confidences* as the least for an accusation.

        Its past is the one that the recording gave under its own settings.
        """
        frame, past = self.judged.frame, self.judged.past
        stacks = frame.request.mode == "stacks"
        judgement = judge_stacks(frame) if stacks else RULE_SETS[settings.rules](frame, settings, past)
        at = [settings.model_copy(update={"accuse_confidence": confidence}) for confidence in confidences]
        return [score(whole_verdict(frame, judgement, one, self.judged.advice), self.label.truth) for one in at]


def find_cases(sources: Sequence[Path], labels: dict[str, Label], labels_root: Path) -> list[tuple[Path, Label]]:
    """The folders to read and their labels. A folder that is neither labelled nor a recording stands for those inside.

    :param labels_root: where the labels' relative paths start.
    :raises UsageError: a folder without a label, or a label without a folder.
    """
    known = {(labels_root / name).resolve(): name for name in labels}
    found: dict[Path, Label] = {}
    used: set[str] = set()
    for source in sources:
        if not source.exists():
            raise UsageError("there is no such folder", where=str(source))
        for path in _expanded(source, known):
            name = known.get(path.resolve())
            if name is not None:
                found[path.resolve()] = labels[name]
                used.add(name)
            elif (path / LABELS).is_file():
                found[path.resolve()] = simulated_label(path / LABELS)
            else:
                raise UsageError(
                    "nobody says what is wrong here", where=str(path), do="name the folder in the file of labels, or leave it out"
                )
    unused = sorted(set(labels) - used)
    if unused:
        raise UsageError(
            f"labelled, but not given: {', '.join(unused[:5])}{' …' if len(unused) > 5 else ''}",
            where="--labels",
            do="give these folders too, or take them out of the file",
        )
    return sorted(found.items(), key=lambda item: str(item[0]))


def _expanded(source: Path, known: dict[Path, str]) -> list[Path]:
    def is_case(path: Path) -> bool:
        return path.resolve() in known or (path / recording.MANIFEST).is_file()

    inside = [] if is_case(source) or not source.is_dir() else [p for p in sorted(source.iterdir()) if p.is_dir() and is_case(p)]
    return inside or [source]


def read_cases(found: Sequence[tuple[Path, Label]], settings: EroicaSettings, tell: Tell = lambda *_: None) -> list[Case]:
    """Read each folder once.

    :raises InvalidInput: a recording or a trace that is broken, or that leads to nothing that could be judged.
    """
    cases = []
    for done, (path, label) in enumerate(found):
        tell(path.name, done, len(found))
        is_recording = (path / recording.MANIFEST).is_file()
        judged, job = _recorded(path, label, settings) if is_recording else (_traced(path, settings), path.name)
        cases.append(Case(path.name, label.job or job, label, judged))
    tell("", len(found), len(found))
    return cases


def _recorded(path: Path, label: Label, settings: EroicaSettings) -> tuple[Judged, str]:
    manifest = recording.read_manifest(path)
    recording.verify(path, manifest)
    kept: list[Judged] = []

    def watch(judged: Judged) -> None:
        key = (judged.frame.request.issued_at_us, judged.frame.request.request)
        if label.request and judged.frame.request.request != label.request:
            return
        if not kept or key > (kept[0].frame.request.issued_at_us, kept[0].frame.request.request):
            kept[:] = [judged]

    replay(path, manifest, settings, watch=watch)
    if not kept:
        which = f"no request {label.request[:60]!r} was judged" if label.request else "the recording leads to no verdict"
        raise InvalidInput(which, where=str(path), do="leave it out, or record it until its verdict")
    return kept[0], manifest.job


def _traced(path: Path, settings: EroicaSettings) -> Judged:
    kept: list[Judged] = []
    diagnose(path, settings, watch=kept.append)
    if not kept:
        raise InvalidInput("a timeline of operations is judged without these thresholds", where=str(path), do="leave it out")
    return kept[-1]

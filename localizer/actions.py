"""What to do about a cause: the playbook's action for its fault or class, with what people said of the remedies so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from eroica.localizer.frame import Frame, Ints
from eroica.localizer.judgement import Finding
from eroica.localizer.playbook import Leaf, Playbook, load_playbook
from eroica.localizer.playbook.facts import Facts
from eroica.localizer.stepmodel import step_model
from eroica.schemas.verdicts import Action, CauseClass, Remedy


@dataclass(frozen=True)
class Advice:
    """The playbook, and the feedback that counts for one request."""

    playbook: Playbook = field(default_factory=load_playbook)
    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Remedy, or entry of the playbook for the advice as a whole → how often it helped, and did not."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """``feedback/partition`` → offsets of what was counted."""

    def leaf(self, frame: Frame, finding: Finding, findings: list[Finding]) -> Leaf | None:
        """The fault of *finding*, one of the *findings* that the verdict names.

        A rule that knows the fault keeps its word; the signature of that name, if there is one, says what to do.
        """
        if finding.fault is not None:
            known = self.playbook.signature(finding.fault)
            return Leaf(known, []) if known is not None else None
        return self.playbook.leaf(finding.cls, facts_of(frame, finding, findings))

    def action(self, cls: CauseClass, leaf: Leaf | None) -> Action:
        """What to do, who does it, and what may help."""
        signature = leaf.signature if leaf is not None else None
        chosen = self.playbook.action(cls, signature)
        entry = signature.fault if signature is not None else cls
        remedies = []
        for remedy in self.playbook.remedies(cls, signature):
            helped, not_helped = self.counts.get(remedy.id, (0, 0))
            remedies.append(Remedy(id=remedy.id, text=remedy.text, helped=helped, did_not_help=not_helped))
        return Action(
            kind=chosen.kind,
            text=(signature.do if signature is not None else "") or chosen.text,
            playbook=entry,
            name=chosen.id,
            first=chosen.first,
            who=chosen.who,
            helped=self.counts.get(entry, (0, 0))[0],
            did_not_help=self.counts.get(entry, (0, 0))[1],
            remedies=remedies,
        )


def facts_of(frame: Frame, finding: Finding, findings: list[Finding]) -> Facts:
    """The facts of *finding*; the suspects of all *findings* are nobody's peers."""
    accused: Ints = np.concatenate([f.ranks for f in findings]) if findings else np.empty(0, np.int64)
    ranks = finding.ranks
    if ranks.size == 0 and finding.stages:
        ranks = frame.ranks[np.isin(step_model(frame).stage, finding.stages)]
    return Facts.of(frame, ranks, finding.hosts, accused, finding.functions)

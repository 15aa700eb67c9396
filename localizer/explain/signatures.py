"""Conditions of the playbook: the quantity on each suspect and peer."""

from __future__ import annotations

import numpy as np

from eroica.localizer.actions import facts_of
from eroica.localizer.explain.registry import Explanation, Item, Unexplained, register
from eroica.localizer.playbook.conditions import ACCUSER, evidence, holds, measure
from eroica.schemas.ranks import format_ranks


@register(f"{ACCUSER}*", "*")
def condition(item: Item) -> Explanation:
    """The condition of the signature that has this metric, measured again."""
    printed, judged = item.evidence, item.judged
    signature = judged.advice.playbook.signature(printed.rule.removeprefix(ACCUSER))
    sure = [f for f in judged.judgement.findings if f.confidence >= judged.settings.accuse_confidence]
    mine = [f for f in sure if (f.cls, format_ranks(f.ranks), f.hosts) == _who(item)]
    for finding in mine if signature is not None else ():
        facts = facts_of(judged.frame, finding, sure)
        for c in (*signature.all, *signature.any):  # type: ignore[union-attr]  # the loop runs only with one
            measured = measure(c, facts)
            if measured is None or not holds(c, measured):
                continue
            again = evidence(c, measured, facts, signature.fault)  # type: ignore[union-attr]  # as above
            if (again.metric, again.subject) != (printed.metric, printed.subject):
                continue
            how = f"{c.take} over the suspects, and over the peers; score: value over expected"
            if c.looks_at in ("stack", "named"):
                return Explanation(how, (), [], again.value, again.expected, again.score)
            each = np.full(judged.frame.size, np.nan)
            each[facts.rows] = facts.values(c).each
            heading = f"{again.metric}, {again.unit}"
            rows = item.by_rank({heading: each}, facts.rows[facts.count :], facts.rows[: facts.count])
            return Explanation(how, ("", heading), rows, again.value, again.expected, again.score)
    raise Unexplained(f"the playbook has no such condition of {printed.rule!r}", do="use the playbook of the localizer")


def _who(item: Item) -> tuple[str, str, list[str]]:
    return item.cause.class_, item.cause.suspects.ranks, item.cause.suspects.hosts

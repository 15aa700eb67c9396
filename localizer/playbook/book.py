"""The playbook in memory: which leaf fits a cause, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from eroica.localizer.playbook.conditions import evidence, holds, measure
from eroica.localizer.playbook.facts import Facts
from eroica.localizer.playbook.model import ActionClass, Condition, Remedy, Signature
from eroica.schemas.verdicts import CauseClass, Evidence


@dataclass(frozen=True, slots=True)
class Leaf:
    """A signature that holds, and the comparisons that made it hold."""

    signature: Signature
    evidence: list[Evidence]


@dataclass(frozen=True)
class Playbook:
    """Signatures, actions and remedies. Immutable; the same content has the same digest."""

    actions: Mapping[str, ActionClass]
    defaults: Mapping[CauseClass, str]
    signatures: Sequence[Signature]
    digest: str
    problems: tuple[str, ...] = ()
    """Files of a user's folder that were left out, and why."""
    _by_fault: dict[str, Signature] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Index the signatures."""
        object.__setattr__(self, "_by_fault", {s.fault: s for s in self.signatures})

    def leaf(self, cls: CauseClass, facts: Facts) -> Leaf | None:
        """The signature that fits best; ``None`` where none has positive evidence."""
        found = [leaf for s in self.signatures if cls in s.classes and (leaf := _try(s, facts)) is not None]
        return max(found, key=lambda leaf: (leaf.signature.prefer, len(leaf.evidence)), default=None)

    def signature(self, fault: str) -> Signature | None:
        """The signature called *fault*."""
        return self._by_fault.get(fault)

    def action(self, cls: CauseClass, signature: Signature | None) -> ActionClass:
        """What to do: the signature's action, else that of the class."""
        return self.actions[signature.action if signature is not None else self.defaults[cls]]

    def remedies(self, cls: CauseClass, signature: Signature | None) -> list[Remedy]:
        """The signature's remedies; where it has none, or there is none, the action's."""
        own = list(signature.remedies) if signature is not None else []
        return own or list(self.action(cls, signature).remedies)


def _try(signature: Signature, facts: Facts) -> Leaf | None:
    needed = [_held(c, facts, signature.fault) for c in signature.all]
    if any(item is None for item in needed):
        return None
    some = [_held(c, facts, signature.fault) for c in signature.any if c.looks_at != "named"]
    if not any(item is not None for item in some):
        # What a cause names was measured by its rule: said only where nothing of ours says it better.
        some = [_held(c, facts, signature.fault) for c in signature.any if c.looks_at == "named"]
    if signature.any and not any(item is not None for item in some):
        return None
    if any(_held(c, facts, signature.fault) is not None for c in signature.none):
        return None
    return Leaf(signature, list(_present([*needed, *some])))


def _held(condition: Condition, facts: Facts, fault: str) -> Evidence | None:
    measured = measure(condition, facts)
    if measured is None or not holds(condition, measured):
        return None
    return evidence(condition, measured, facts, fault)


def _present(items: list[Evidence | None]) -> Iterator[Evidence]:
    yield from (item for item in items if item is not None)

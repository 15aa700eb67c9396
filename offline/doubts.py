"""Verdicts that what is known of their traces makes less sure."""

from __future__ import annotations

import msgspec

from eroica.schemas.verdicts import Verdict
from eroica.schemas.wording import say_share

__all__ = ["cannot_tell", "less_sure"]


def cannot_tell(verdict: Verdict, why: str) -> Verdict:
    """*verdict* as one that clears nobody, and why."""
    covered = f"{verdict.coverage.received} of {verdict.coverage.expected} ranks"
    headline = f"{verdict.job}: cannot tell, {covered} answered: {why}"
    return msgspec.structs.replace(verdict, status="insufficient_data", headline=headline)


def less_sure(verdict: Verdict, most: float) -> Verdict:
    """*verdict* with no cause above *most*."""
    headline = verdict.headline
    for cause in verdict.causes[:1]:
        headline = headline.replace(f"({say_share(cause.confidence)} sure)", f"({say_share(min(cause.confidence, most))} sure)")
    causes = [msgspec.structs.replace(c, confidence=min(c.confidence, most)) for c in verdict.causes]
    return msgspec.structs.replace(verdict, headline=headline, causes=causes)

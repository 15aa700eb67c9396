"""The table behind every item of evidence, made again from the frame that a recording leads to.

``registry`` knows which function explains which metric of which rule; the other modules hold these functions. A rule that emits a
new metric registers its table with a few lines (docs/record-replay.md).
"""

from eroica.localizer.explain import (
    history,
    pauses,
    published,
    receive,
    signatures,
    stacks,
    times,
    transfers,
)  # each registers its tables
from eroica.localizer.explain.registry import Explained, Explanation, Unexplained, explain, explain_verdict, registered

__all__ = [
    "Explained",
    "Explanation",
    "Unexplained",
    "explain",
    "explain_verdict",
    "history",
    "pauses",
    "published",
    "receive",
    "registered",
    "signatures",
    "stacks",
    "times",
    "transfers",
]

"""From a profiler's trace to a behaviour summary of a few KB: reader, critical path, collectives, phases, pauses.

``summarise`` does all of it for one file; ``python -m eroica.producers.trace`` is the same as a process of its own.
"""

from __future__ import annotations

from eroica.producers.trace.reader import read_trace
from eroica.producers.trace.settings import SummarySettings
from eroica.producers.trace.summarise import Extras, identity_from_trace, summarise, summarise_trace

__all__ = ["Extras", "SummarySettings", "identity_from_trace", "read_trace", "summarise", "summarise_trace"]

"""The executions of collectives of some ranks, in the form in which summaries hold them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from eroica.schemas.summaries import Communicator, Slot
from eroica.simulator.channels import Channel, Channels
from eroica.simulator.effects import FloatArray

__all__ = ["SlotRows", "slot_rows"]

DTYPE = "BFloat16"
HIDDEN_US = 0.5
"""An execution that compute hides for longer is told apart from one on the critical path."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A place whose executions are told; lists by rank."""

    op: str
    index: int
    bytes: int
    total_us: list[float]
    start_us: list[list[float]]
    duration_us: list[list[float]]
    exposed_us: list[list[float]]
    """Empty where nothing is hidden."""


@dataclass(frozen=True, slots=True)
class _Rest:
    """Places of one operation that are told as a total."""

    op: str
    count: int
    bytes: int
    total_us: list[float]


@dataclass(frozen=True)
class SlotRows:
    """The traffic of some ranks of a stage."""

    channels: list[tuple[Channel, list[_Kept], list[_Rest]]]
    steps: list[int]

    def communicators(self, known: Channels, stage: int, lane: int, i: int) -> list[Communicator]:
        """Those of the rank in *lane*, which is number *i* here."""
        out = []
        steps, count = self.steps, len(self.steps)
        for channel, kept, rest in self.channels:
            name, kind, ranks, size = known.identity(channel, stage, lane)
            slots = [
                Slot(
                    op=k.op,
                    index=k.index,
                    bytes=k.bytes,
                    dtype=DTYPE,
                    count=count,
                    total_us=k.total_us[i],
                    step=steps,
                    start_us=k.start_us[i],
                    duration_us=k.duration_us[i],
                    exposed_us=k.exposed_us[i],
                )
                for k in kept
            ]
            slots += [Slot(op=r.op, index=-1, bytes=r.bytes, count=r.count, total_us=r.total_us[i]) for r in rest]
            out.append(Communicator(name=name, kind=kind, backend="nccl", ranks=ranks, size=size, slots=slots))
        return out


def slot_rows(
    channels: list[Channel], steps: list[int], start: FloatArray, duration: FloatArray, exposed: FloatArray
) -> SlotRows:
    """Rows from arrays of shape (places of all channels, ranks, steps)."""
    out, at = [], 0
    total = duration.sum(axis=2)
    for channel in channels:
        numbers = range(at, at + len(channel.places))
        at += len(channel.places)
        kept = [
            _Kept(
                place.name,
                place.index,
                place.bytes,
                total[n].round(1).tolist(),
                start[n].round(1).tolist(),
                duration[n].round(1).tolist(),
                _exposed(duration[n], exposed[n]),
            )
            for n, place in zip(numbers, channel.places, strict=True)
            if place.kept
        ]
        rest = []
        for op in sorted({place.name for place in channel.places if not place.kept}):
            mine = [n for n, p in zip(numbers, channel.places, strict=True) if not p.kept and p.name == op]
            size = max(p.bytes for p in channel.places if not p.kept and p.name == op)
            rest.append(_Rest(op, len(mine) * len(steps), size, total[mine].sum(axis=0).round(1).tolist()))
        out.append((channel, kept, rest))
    return SlotRows(out, steps)


def _exposed(duration: FloatArray, exposed: FloatArray) -> list[list[float]]:
    hidden = np.asarray((exposed < duration - HIDDEN_US).any(axis=1)).tolist()
    return [row if some else [] for row, some in zip(exposed.round(1).tolist(), hidden, strict=True)]

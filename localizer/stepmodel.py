"""How long a step takes by the own times of its ranks: what mending somebody would give back.

Replicas meet at the end of a step, so the slowest decides. Inside a replica the ranks of a stage keep step with each other, and
the stages form a pipeline: with m micro-batches and compute times oₚ it is busy for (Σ oₚ + (m − 1) · max oₚ) / m. What is done
once a step (loading, the optimizer) comes on top, the longest of all stages. Without a pipeline the slowest rank's own time is
all. Communication is left out; it is the same before and after.

Own times come in two parts, shape (2, n, s): what is done once a step, and the rest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from eroica.localizer.frame import Floats, Frame, Ints
from eroica.localizer.numbering import distinct, first_seen, heads_of, stable_order

UNKNOWN_MICRO_BATCHES = 8
"""Taken where a pipeline's sends are not told one by one."""
_REPLICA = ("dp", "dp_replicate", "dp_shard", "data")
_STAGE = ("pp", "pipe")
_STAGE_CLASS = re.compile(r"^pp(\d+)(\.|$)")


@dataclass(frozen=True)
class StepModel:
    """Where each worker of a frame stands in the job."""

    stage: Ints
    """Shape (n,): pipeline stage, 0 without a pipeline."""
    replica: Ints
    """Shape (n,): data replica, numbered from 0."""
    micro_batches: int
    _known: dict[int, tuple[Floats, Floats]] = field(default_factory=dict, repr=False, compare=False)
    """Tables that nobody can write to any more, and the lengths of their steps."""

    @cached_property
    def stages(self) -> int:
        """Number of stages."""
        return int(self.stage.max(initial=0)) + 1

    def stage_times(self, own: Floats) -> Floats:
        """Slowest of *own*, shape (n, s), by replica, stage and step: shape (replicas, stages, s); 0 where nobody is known."""
        order, heads, cell = self._by_cell
        out = np.zeros((self.stages, int(self.replica.max(initial=0)) + 1, own.shape[1]))
        if heads.size:
            ordered = own if order is None else own.take(order, axis=0)
            out.reshape(-1, own.shape[1])[cell] = np.maximum(np.maximum.reduceat(ordered, heads, axis=0), 0.0)
        return np.asarray(out.transpose(1, 0, 2))

    @cached_property
    def _by_cell(self) -> tuple[Ints | None, Ints, Ints]:
        """Workers by stage and replica (``None``: as they are), where each such cell begins among them, and its number."""
        cell = self.stage * (int(self.replica.max(initial=0)) + 1) + self.replica
        if bool((cell[1:] >= cell[:-1]).all()):
            heads = heads_of(cell)
            return None, heads, cell[heads]
        order = stable_order(cell)
        heads = heads_of(cell[order])
        return order, heads, cell[order[heads]]

    def step_us(self, parts: Floats) -> Floats:
        """Length of each step, shape (s,), for own times of shape (2, n, s)."""
        if parts.flags.writeable or parts.base is not None:
            return self._step_us(parts)
        if id(parts) not in self._known:
            self._known[id(parts)] = parts, self._step_us(parts)
        return self._known[id(parts)][1]

    def _step_us(self, parts: Floats) -> Floats:
        if parts.size == 0:
            return np.zeros(parts.shape[2])
        if self.stages == 1:
            return np.asarray(parts.sum(axis=0).max(axis=0))
        once, rest = self.stage_times(parts[0]), self.stage_times(parts[1])
        m = self.micro_batches
        busy = (rest.sum(axis=1) + (m - 1) * rest.max(axis=1)) / m + once.max(axis=1)
        return np.asarray(busy.max(axis=0))

    def gain_us(self, before: Floats, after: Floats) -> float:
        """Mean time of a step that *after* saves against *before*."""
        return float((self.step_us(before) - self.step_us(after)).mean()) if before.shape[2] else 0.0


def step_model(frame: Frame) -> StepModel:
    """From the workers' coordinates; without them every worker is a replica, and stages come from the classes' names."""
    named = [_STAGE_CLASS.match(name) for name in frame.classes]
    of_class = [int(match.group(1)) if match else 0 for match in named]
    stage, number = np.zeros(frame.size, np.int64), np.zeros(frame.size, np.int64)
    seen = np.unique(frame.coords.code).tolist()
    axes = frame.coords.axes[seen[0]] if len(seen) == 1 else ()
    if told := [k for k in _REPLICA if k in axes]:
        # Most jobs: all workers know the same axes.
        column = dict(zip(axes, frame.coords.values.T, strict=False))
        along = next((k for k in _STAGE if k in axes), None)
        stage = column[along] if along else np.array(of_class, dtype=np.int64)[frame.cls]
        number, _ = first_seen(*(column[axis] for axis in told))
    else:
        keys: dict[tuple[int, ...], int] = {}
        for row, (known, cls) in enumerate(zip(frame.coords.each(), frame.cls.tolist(), strict=True)):
            stage[row] = next((known[k] for k in _STAGE if k in known), of_class[cls])
            mine = tuple([known[k] for k in _REPLICA if k in known])
            number[row] = keys.setdefault(mine or ((-1,) if known else (-1, row)), len(keys))
    stage = distinct(stage)[1]
    return StepModel(stage, number, _micro_batches(frame, stage))


def _micro_batches(frame: Frame, stage: Ints) -> int:
    """Receives and sends of the first stage's busiest worker in a step: one each way for every micro-batch."""
    all_ = frame.collectives
    if all_.size == 0 or frame.size == 0 or stage.max(initial=0) == 0:
        return 1 if stage.max(initial=0) == 0 else UNKNOWN_MICRO_BATCHES
    pairs = np.array([c.size == 2 and c.kind.lower().startswith(("pipe", "pp", "mesh_pp")) for c in frame.communicators])
    counts = np.zeros(frame.size, np.int64)
    for block in all_.blocks() if pairs.any() else ():
        mine = pairs[all_.slots.communicator[all_.slot(block)]] & (stage[block.row] == 0)
        np.add.at(counts, block.row[mine], 1)
    if not counts.any():
        return UNKNOWN_MICRO_BATCHES
    return max(1, round(float(counts.max()) / max(1, all_.steps.size) / 2))

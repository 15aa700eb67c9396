"""Compute that is uneven from step to step: what lengths of the data explain, and what one worker did once.

The data of a replica pass all of its stages, and each micro-batch forward and backward: a long one takes longer everywhere.
What is longer in one stage alone, or in one direction alone, is no data.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eroica.topology.stepgraph import FloatArray, StepGraph
from eroica.topology.timeline import COMPUTE

__all__ = ["Lengths", "lengths_of", "odd_steps"]

BoolArray = npt.NDArray[np.bool_]

ODD = 1.5
"""Compute of a worker in one step, against that of its peers then and its own in other steps, from which the step is odd."""
ENOUGH = 3
"""So many peers, or steps, show what is usual."""
FAR = 8.0
"""Nor is it odd below so many times what workers and steps differ by as a rule (the median): lengths of batches do as much."""
RARE = 0.6
"""Who is odd in more of its steps is so always."""
ALONE = 1 / 3
"""Where another stage of the replica grew by no more than this share of it, data are not why."""
MOST = 0.5
"""Share of a worker's micro-batches from which all of them are long."""
TOGETHER = 0.7
"""Correlation of a micro-batch's length in one stage with that in the others from which they follow each other."""


@dataclass(frozen=True)
class Lengths:
    """What speaks for micro-batches of unequal length."""

    together: float
    """Correlation of the forward and the backward of a micro-batch within a stage, each worker taken by itself."""
    spread: float
    """Standard deviation of the forwards, relative to their mean."""
    stages_agree: bool
    """Whether a micro-batch is long in all stages alike; true with one stage."""
    single: tuple[int, int] | None
    """(lane, step) that holds most of what is longer than usual, if one does."""


def odd_steps(graph: StepGraph, times: FloatArray, load: FloatArray) -> BoolArray:
    """In which steps single workers compute much longer, though data do not make them; shape (stages, lanes, steps).

    With several stages that is where others of the replica are as usual. With one it is only told of a worker that stands
    alone, by all of its micro-batches being long (lengths differ from one to the next), or a forward without its backward.

    :param load: compute of each worker in each step, same shape.
    """
    stages, lanes, steps = load.shape
    none = np.zeros(load.shape, dtype=bool)
    if steps < ENOUGH:
        return none
    # Peers show what a step is like; without them a worker's own steps do, most of which must be as usual.
    usual = np.broadcast_to(np.quantile(load, 0.5 if lanes < ENOUGH else 0.25, axis=2, keepdims=True), load.shape)
    if lanes >= ENOUGH:
        peers = np.stack([np.median(np.delete(load, d, axis=1), axis=1) for d in range(lanes)], axis=1)
        usual = np.maximum(usual, peers)
    more = np.divide(load, usual, out=np.ones_like(load), where=usual > 0) - 1.0
    away = np.abs(np.log(np.divide(load, usual, out=np.ones_like(load), where=(usual > 0) & (load > 0))))
    odd: BoolArray = (more >= ODD - 1.0) & (np.log1p(np.maximum(more, 0.0)) >= FAR * np.median(away))
    odd &= odd.mean(axis=2, keepdims=True) <= RARE
    if stages > 1:
        return np.asarray(odd & (more.min(axis=0) <= ALONE * more))
    where = np.argwhere(odd[0]).tolist()
    if len({d for d, _ in where}) != 1 or not all(_no_length(graph, times, d, k) for d, k in where):
        return none
    return odd


def _no_length(graph: StepGraph, times: FloatArray, lane: int, step: int) -> bool:
    """Whether the worker's step, of a job with one stage, is longer in a way that a few long micro-batches are not."""
    forward, backward = (_by_micro(graph, 0, kind) for kind in COMPUTE)
    both = sorted(set(forward) & set(backward))
    if len(both) < 2:
        return False
    long = np.stack([_long(times, [of[m] for m in both], lane, step) for of in (forward, backward)])
    return bool((long.all(axis=0).mean() > MOST) or (long[0] ^ long[1]).sum() >= long.all(axis=0).sum())


def _long(times: FloatArray, ops: list[int], lane: int, step: int) -> BoolArray:
    usual = np.median(times[ops].reshape(len(ops), -1), axis=1)
    out: BoolArray = times[ops, lane, step] >= ODD * usual
    return out


def lengths_of(graph: StepGraph, times: FloatArray) -> Lengths:
    """How micro-batches differ in length.

    Each worker is taken relative to its own mean, so that neither heavy stages nor slow workers count as long micro-batches.

    :param times: shape (ops, lanes, steps).
    """
    forward, backward = list[FloatArray](), list[FloatArray]()
    by_stage = list[dict[tuple[int, int], FloatArray]]()
    for s in range(int(graph.stage.max()) + 1):
        f_ops, b_ops = (_by_micro(graph, s, kind) for kind in COMPUTE)
        both = sorted(set(f_ops) & set(b_ops))
        if not both:
            continue
        one, two = (_relative(times[[of[m] for m in both]]) for of in (f_ops, b_ops))
        forward.append(one.reshape(-1))
        backward.append(two.reshape(-1))
        by_stage.append(dict(zip(both, one, strict=True)))
    if not forward:
        return Lengths(0.0, 0.0, True, None)
    f, b = np.concatenate(forward), np.concatenate(backward)
    return Lengths(_correlation(f, b), float(f.std()), _alike(by_stage), _single(by_stage))


def _by_micro(graph: StepGraph, stage: int, kind: str) -> dict[tuple[int, int], int]:
    """(chunk, micro-batch) → operation: those of a chunk come in the order of the micro-batches."""
    ops = sorted((o.index, i, o.chunk) for i, o in enumerate(graph.ops) if o.stage == stage and o.kind == kind)
    seen: dict[int, int] = {}
    out = {}
    for _, i, chunk in ops:
        out[chunk, seen.get(chunk, 0)] = i
        seen[chunk] = seen.get(chunk, 0) + 1
    return out


def _relative(times: FloatArray) -> FloatArray:
    mean = times.mean(axis=(0, 2), keepdims=True)
    return np.asarray(np.divide(times, mean, out=np.ones_like(times), where=mean > 0))


def _alike(by_stage: list[dict[tuple[int, int], FloatArray]]) -> bool:
    """Whether micro-batches are long in all stages alike, as the median stage says."""
    if len(by_stage) < 2:
        return True
    shared = sorted(set.intersection(*(set(one) for one in by_stage)))
    if not shared:
        return False
    each = np.stack([np.stack([one[m] for m in shared]).reshape(-1) for one in by_stage])
    rest = (each.sum(axis=0) - each) / (len(by_stage) - 1)
    return float(np.median([_correlation(a, b) for a, b in zip(each, rest, strict=True)])) >= TOGETHER


def _single(by_stage: list[dict[tuple[int, int], FloatArray]]) -> tuple[int, int] | None:
    more = sum(np.maximum(np.stack(list(one.values())) - np.median(list(one.values())), 0.0).sum(axis=0) for one in by_stage)
    more = np.asarray(more)
    total = float(more.sum())
    lane, step = np.unravel_index(int(more.argmax()), more.shape)
    return (int(lane), int(step)) if more.size > 2 and total > 0 and more[lane, step] > MOST * total else None


def _correlation(one: FloatArray, two: FloatArray) -> float:
    if one.size < 2 or one.std() == 0 or two.std() == 0:
        return 0.0
    return float(np.corrcoef(one, two)[0, 1])

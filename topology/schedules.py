"""Pipeline schedules: what each pipeline rank computes, in order.

A schedule is described once for any rank as phrases, ``(how often, "F0 B1 …")``: F forward, B backward, I and W its two
halves (gradients of inputs, of weights), the digit the model chunk of the rank, ``+`` two that run as one overlapped
block. Micro-batches follow by counting; a bare ``W`` takes the oldest pending half. So a description is a few lines,
and everything else is derived from it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from eroica.schemas.errors import TopologyError, UsageError

__all__ = ["SCHEDULES", "Action", "ActionKind", "Description", "Schedule", "make_schedule"]

ActionKind = Literal["F", "B", "I", "W"]
_KINDS: Mapping[str, ActionKind] = {"F": "F", "B": "B", "I": "I", "W": "W"}
MAX_ACTIONS = 4_000_000
"""Most actions of a schedule: beyond it the sizes are a mistake."""


class Action(NamedTuple):
    """One computation of a pipeline rank."""

    stage: int
    """Global stage, 0 next to the input."""
    kind: ActionKind
    micro: int

    def __str__(self) -> str:
        return f"{self.kind}{self.micro} of stage {self.stage}"


@dataclass(frozen=True)
class Schedule:
    """The order of actions of every pipeline rank.

    ``placement`` ``loop``: rank p holds stages p, p+P, …; ``v``: p and 2P−1−p.
    """

    name: str
    ranks: int
    chunks: int
    micro_batches: int
    placement: Literal["loop", "v"]
    orders: tuple[tuple[Action, ...], ...]
    overlapped: Mapping[Action, Action]
    """Forward → the backward that it overlaps with: they start together, and what they give is there when both are
    done.
    """

    @property
    def stages(self) -> int:
        """Number of stages of the model."""
        return self.ranks * self.chunks

    def rank_of(self, stage: int) -> int:
        """The pipeline rank that holds *stage*."""
        if self.placement == "v":
            return stage if stage < self.ranks else 2 * self.ranks - 1 - stage
        return stage % self.ranks


Phrases = Iterator[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class Description:
    """A schedule in phrases: a function of (rank p, ranks P, micro-batches m, chunks v).

    ``chunks`` is what the schedule needs per rank; 0 for any. ``least`` is the fewest micro-batches, as a multiple of
    P.
    """

    phrases: Callable[[int, int, int, int], Phrases]
    chunks: int
    placement: Literal["loop", "v"] = "loop"
    least: int = 0
    source: str = ""


def _gpipe(p: int, ranks: int, m: int, v: int) -> Phrases:
    yield m, "F0"
    yield m, "B0"


def _one_f_one_b(p: int, ranks: int, m: int, v: int) -> Phrases:
    ahead = min(ranks - 1 - p, m)
    yield ahead, "F0"
    yield m - ahead, "F0 B0"
    yield ahead, "B0"


def _interleaved(p: int, ranks: int, m: int, v: int) -> Phrases:
    rounds = max(1, m // ranks)
    if m % rounds:
        raise TopologyError(f"{m} micro-batches cannot be divided into {rounds} equal rounds", do=f"use a multiple of {ranks}")
    group, total = m // rounds, m * v
    ahead = min((v - 1) * group + 2 * (ranks - 1 - p), total)
    forward = [f"F{k // group % v}" for k in range(total)]
    backward = [f"B{v - 1 - k // group % v}" for k in range(total)]
    yield 1, " ".join(forward[:ahead])
    yield 1, " ".join(f"{f} {b}" for f, b in zip(forward[ahead:], backward, strict=False))
    yield 1, " ".join(backward[total - ahead :])


def _looped_bfs(p: int, ranks: int, m: int, v: int) -> Phrases:
    for chunk in range(v):
        yield m, f"F{chunk}"
    for chunk in reversed(range(v)):
        yield m, f"B{chunk}"


def _zb_h1(p: int, ranks: int, m: int, v: int) -> Phrases:
    ahead = min(ranks - 1 - p, m)
    both = m - ahead
    lag = min(p, both)
    yield ahead, "F0"
    yield lag, "F0 I0"
    yield both - lag, "F0 I0 W"
    rest = min(max(p - both, 0), ahead)
    yield rest, "I0"
    yield ahead - rest, "I0 W"
    yield lag + rest, "W"


def _zbv(p: int, ranks: int, m: int, v: int) -> Phrases:
    full = max(m, 2 * ranks - 1)
    ahead = 2 * ranks - p - 1
    yield 2 * (ranks - p) - 1, "F0"
    yield p, "F1 F0"
    yield ranks - p, "F1 I1 W1"
    yield full - ahead, "F0 I0 W0 F1 I1 W1"
    yield ranks - p - 1, "I0 W0 F1 I1 W1"
    yield p, "I0 I1"
    yield ranks - p, "I0 W0"
    yield p, "W1"
    yield p, "W0"


def _dualpipe_v(p: int, ranks: int, m: int, v: int) -> Phrases:
    after = ranks - p - 1
    half = (p + 1) // 2
    yield 2 * after, "F0"
    yield p + 1, "F0 F1"
    yield after, "I1 W F1"
    if p == ranks - 1:
        yield 1, "F0 B1 F1+B0"
    yield m - 2 * ranks + p + (p < ranks - 1), "F0+B1 F1+B0"
    yield after, "B1 F1+B0"
    yield half, "B1 B0"
    if p % 2 == 0:
        yield 1, "B1 I0"
    yield half, "I1 I0"
    yield after, "W I0"
    yield p + 1, "W"


SCHEDULES: Mapping[str, Description] = {
    "gpipe": Description(_gpipe, 1, source="Huang et al., GPipe, 2019"),
    "1f1b": Description(_one_f_one_b, 1, source="Narayanan et al., Megatron-LM, SC '21, §2.2.1"),
    "interleaved-1f1b": Description(_interleaved, 0, source="Narayanan et al., Megatron-LM, SC '21, §2.2.2"),
    "looped-bfs": Description(_looped_bfs, 0, source="Lamy-Poirier, Breadth-First Pipeline Parallelism, 2023"),
    "zbh1": Description(_zb_h1, 1, source="Qi et al., Zero Bubble Pipeline Parallelism, 2023, §2.1"),
    "zbv": Description(_zbv, 2, "v", source="Qi et al., Pipeline Parallelism with Controllable Memory, 2024"),
    "dualpipe-v": Description(_dualpipe_v, 2, "v", least=2, source="DeepSeek-AI, DualPipe, 2025"),
}
"""Name → description."""


def make_schedule(name: str, ranks: int, micro_batches: int, chunks: int = 0) -> Schedule:
    """Write a schedule out for all *ranks*.

    :param chunks: model chunks a rank; 0 takes what the schedule needs (2 where it takes any).
    :raises UsageError: for an unknown name.
    :raises TopologyError: for sizes that the schedule cannot run.
    """
    if name not in SCHEDULES:
        raise UsageError(f"{name!r} is not a known schedule", do=f"use one of {', '.join(SCHEDULES)}")
    description = SCHEDULES[name]
    v = chunks or description.chunks or 2
    if description.chunks not in (0, v):
        raise TopologyError(f"{name} holds {description.chunks} chunks a rank, not {v}")
    if ranks < 1 or micro_batches < 1 or v < 1:
        raise TopologyError(f"{name} needs at least one rank, one chunk and one micro-batch")
    if micro_batches < description.least * ranks:
        raise TopologyError(f"{name} needs at least {description.least * ranks} micro-batches, not {micro_batches}")
    if ranks * micro_batches * v * 3 > MAX_ACTIONS:
        raise TopologyError(f"{name} with these sizes has more than {MAX_ACTIONS} actions")
    overlapped: dict[Action, Action] = {}
    orders = tuple(tuple(_count(description, p, ranks, micro_batches, v, overlapped)) for p in range(ranks))
    return Schedule(name, ranks, v, micro_batches, description.placement, orders, overlapped)


def _count(description: Description, p: int, ranks: int, m: int, v: int, overlapped: dict[Action, Action]) -> Iterator[Action]:
    """Give the actions of a rank their micro-batches, leaving out those beyond *m* (short runs of a long pattern)."""
    counter = _Counter([p, 2 * ranks - 1 - p] if description.placement == "v" else [p + c * ranks for c in range(v)])
    for times, phrase in description.phrases(p, ranks, m, v):
        words = [word.split("+") for word in phrase.split()]
        for _ in range(times):
            for word in words:
                actions = [counter.next(part) for part in word]
                if len(actions) == 2:
                    overlapped[actions[0]] = actions[1]
                yield from (action for action in actions if action.micro < m)


class _Counter:
    """Numbers the micro-batches of one rank's actions."""

    def __init__(self, stages: list[int]) -> None:
        self._stages = stages
        self._done: dict[tuple[str, int], int] = {}
        self._pending: deque[tuple[int, int]] = deque()

    def next(self, word: str) -> Action:
        kind = _KINDS[word[0]]
        if word == "W":
            chunk, micro = self._pending.popleft()
            return Action(self._stages[chunk], kind, micro)
        chunk = int(word[1:])
        key = ("F" if kind == "F" else "W" if kind == "W" else "B", chunk)
        micro = self._done.get(key, 0)
        self._done[key] = micro + 1
        if kind == "I":
            self._pending.append((chunk, micro))
        elif kind == "W":
            self._pending.remove((chunk, micro))
        elif kind == "B":
            self._done["W", chunk] = self._done.get(("W", chunk), 0) + 1
        return Action(self._stages[chunk], kind, micro)

"""What a playbook may ask about a cause: a quantity of each suspect and of each peer. Pure, and small whatever the job's size."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from eroica.localizer.columns import MIXED
from eroica.localizer.frame import Floats, Frame, Ints
from eroica.localizer.numbering import stable_order, sums
from eroica.localizer.playbook.model import UNITS, Condition
from eroica.localizer.playbook.patterns import fits, found, in_stack
from eroica.localizer.profile import WAITING_CATEGORY, function_label
from eroica.localizer.stacks import main_stack
from eroica.localizer.tables import split_metric
from eroica.schemas.ranks import format_ranks, say_ranks

Bools = npt.NDArray[np.bool_]
MAX_ROWS = 1_024
"""Suspects, and peers, that are measured: of more, evenly spaced ones by rank."""

ORDINARY = frozenset({"loader", "sync"})
"""Pauses that every step has."""


class Values(NamedTuple):
    """A quantity by row (NaN where unknown), its unit, and of a reading its name."""

    each: Floats
    unit: str
    name: str = ""


@dataclass(frozen=True)
class Facts:
    """The suspects of one cause and their peers, as ranks; suspects are all workers where a cause names nobody.

    Peers are the other workers of the suspects' role that no cause names; where there are fewer than two, of any role.
    """

    frame: Frame
    suspects: Ints
    peers: Ints
    named: tuple[str, ...] = ()
    """Functions that the cause names."""
    rows: Ints = field(init=False)
    """Rows of the suspects that are measured, then of the peers."""
    count: int = field(init=False)
    """How many of ``rows`` are suspects."""
    _kept: dict[str, Floats] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Choose the rows."""
        chosen = [_thinned(np.flatnonzero(np.isin(self.frame.ranks, ranks))) for ranks in (self.suspects, self.peers)]
        object.__setattr__(self, "rows", np.concatenate(chosen))
        object.__setattr__(self, "count", int(chosen[0].size))

    @classmethod
    def of(cls, frame: Frame, ranks: Ints, hosts: Iterable[str], accused: Ints, named: Iterable[str]) -> Facts:
        """The facts of a cause.

        :param ranks: its suspects; where it has none, the workers of *hosts*, and without those all.
        :param accused: the suspects of all causes, who are nobody's peers.
        """
        known = frame.ranks if frame.size else np.array([row.rank for row in frame.stacks], dtype=np.int64)
        suspects, wanted = np.asarray(ranks, dtype=np.int64), set(hosts)
        if suspects.size == 0 and wanted:
            suspects = frame.ranks_on(wanted)
        if not np.isin(suspects, known).any():
            return cls(frame, known, np.empty(0, np.int64), tuple(named))
        free = ~np.isin(known, np.concatenate((suspects, accused)))
        if frame.size:
            roles = np.unique(frame.cls[np.isin(frame.ranks, suspects)])
            same = free & np.isin(frame.cls, roles)
            free = same if np.count_nonzero(same) > 1 else free
        return cls(frame, suspects, known[free], tuple(named))

    def values(self, condition: Condition) -> Values:
        """The quantity of *condition* for each of ``rows``."""
        if condition.looks_at == "metric":
            return self._reading(condition)
        measure = {"function": self._function, "pause": self._pause, "communicator": self._transfer}[condition.looks_at]
        return Values(measure(condition), UNITS.get(condition.quantity, "1"))

    def _reading(self, condition: Condition) -> Values:
        """The reading that speaks most for the condition.

        Where a worker has several devices of a kind, each is compared with the peers' device of that name, and the worst of each
        worker with the worst of each peer: hosts have ports that nobody uses.
        """
        low = condition.above is None
        best, most = Values(np.full(self.rows.size, np.nan), "1"), -np.inf
        for name, by_device in self._readings.items():
            if not fits(str(condition.metric), name):
                continue
            worst = np.full(self.rows.size, np.inf if low else -np.inf)
            candidates = []
            for device, (at, value, unit) in by_device.items():
                (np.minimum if low else np.maximum).at(worst, at, value)
                each = np.full(self.rows.size, np.nan)
                each[at] = value
                candidates.append(Values(each, unit, f"{device}:{name}"))
            pooled = Values(np.where(np.isfinite(worst), worst, np.nan), candidates[0].unit, name)
            for values in [pooled, *(candidates if self._several(by_device) else [])]:
                apart = self._apart(values.each) * (-1.0 if low else 1.0)
                if apart > most:
                    best, most = values, apart
        return best

    def _apart(self, each: Floats) -> float:
        """How far the suspects lie above their peers, as share of what is usual; 0 without peers, least where it is unknown."""
        own, others = each[: self.count], each[self.count :]
        own, others = own[np.isfinite(own)], others[np.isfinite(others)]
        if own.size == 0:
            return -1e300
        usual = float(np.median(others)) if others.size else float(np.median(own))
        return (float(np.median(own)) - usual) / max(abs(usual), 1e-9)

    def _several(self, by_device: dict[str, tuple[Ints, Floats, str]]) -> bool:
        """Whether a suspect tells of more than one device."""
        seen = np.concatenate([at for at, _, _ in by_device.values()])
        return bool(np.bincount(seen[seen < self.count], minlength=1).max() > 1)

    @cached_property
    def _readings(self) -> dict[str, dict[str, tuple[Ints, Floats, str]]]:
        """Name → device → positions in ``rows``, finite values, and the unit."""
        table = self.frame.metrics
        place, at = self._entries(table.row)
        finite = np.isfinite(table.mean[at])
        place, code, value = place[finite], table.name[at][finite], table.mean[at][finite]
        split = [split_metric(full) for full in table.names]
        codes: dict[str, dict[str, list[int]]] = {}
        for number in np.flatnonzero(np.bincount(code, minlength=len(split))).tolist():
            device, name, _ = split[number]
            codes.setdefault(name, {}).setdefault(device, []).append(number)
        out: dict[str, dict[str, tuple[Ints, Floats, str]]] = {}
        for name, by_device in sorted(codes.items()):
            all_of_name = np.isin(code, [number for numbers in by_device.values() for number in numbers])
            unit = split[int(code[int(all_of_name.argmax())])][2] or "1"
            out[name] = {}
            for device, numbers in sorted(by_device.items()):
                mine = np.flatnonzero(np.isin(code, numbers))
                out[name][device] = place[mine], value[mine], unit
        return out

    def _function(self, condition: Condition) -> Floats:
        chosen = np.array([_is(condition, f.name, f.stack, f.category, f.resource) for f in self.frame.functions], dtype=np.bool_)
        if condition.quantity in ("mu", "sigma"):
            chosen &= np.array([f.resource != MIXED for f in self.frame.functions], dtype=np.bool_)
        if not chosen.any():
            quantity = condition.quantity
            return np.full(self.rows.size, np.nan if quantity in ("mu", "sigma", "tail") else 0.0)
        if condition.quantity in ("mu", "sigma", "tail"):
            return self._weighted(condition.quantity, chosen)
        table = self._table("exclusive_us") / self._steps[:, None]
        mine = table[:, chosen].sum(axis=1)
        if condition.quantity == "time_ms":
            return np.asarray(mine / 1e3)
        if condition.quantity == "step_share":
            return np.asarray(mine / np.maximum(self._step_us, 1e-9))
        own = np.array([f.category != WAITING_CATEGORY for f in self.frame.functions])
        own |= chosen
        above = np.maximum(table - self._usual(table), 0.0)
        return np.asarray(above[:, chosen].sum(axis=1) / np.maximum(above[:, own].sum(axis=1), 1e-9))

    def _usual(self, table: Floats) -> Floats:
        """Each function's median over the peers; nothing to compare with where there are none."""
        peers = table[self.count :]
        return np.asarray(np.median(peers, axis=0)) if peers.size else np.full(table.shape[1], np.inf)

    def _table(self, name: str) -> Floats:
        """A column of the patterns, shape (rows, functions)."""
        if name not in self._kept:
            place = np.full(self.frame.size + 1, -1, dtype=np.int64)
            place[self.rows] = np.arange(self.rows.size)
            self._kept[name] = self.frame.patterns.table(name, place[:-1], self.rows.size, len(self.frame.functions))
        return self._kept[name]

    def _weighted(self, quantity: str, chosen: Bools) -> Floats:
        """Mean of a figure over the functions, weighted with their time."""
        weight = self._table("total_us")[:, chosen]
        figure = _ratio(self._table("p99_us"), self._table("p50_us")) if quantity == "tail" else self._table(quantity)
        total = weight.sum(axis=1)
        return np.where(total > 0, (figure[:, chosen] * weight).sum(axis=1) / np.maximum(total, 1e-9), np.nan)

    def _pause(self, condition: Condition) -> Floats:
        out, steps, table = np.zeros(self.rows.size), self._steps, self.frame.pauses
        place, at = self._entries(table.row)
        wanted = np.array([fits(str(condition.pause), kind) for kind in table.kinds], dtype=np.bool_)
        ordinary = np.array([kind in ORDINARY for kind in table.kinds], dtype=np.bool_)
        what = table.what[at]
        hit, rest = wanted[what], ~wanted[what] & ~ordinary[what]
        others = sums(place[rest], table.total_us[at[rest]], out.size)
        if condition.quantity == "max_ms":
            np.maximum.at(out, place[hit], table.max_us[at[hit]] / 1e3)
        else:
            column = table.counts.astype(np.float64) if condition.quantity == "count" else table.total_us
            out = sums(place[hit], column[at[hit]], out.size)
        if condition.quantity == "pause_share":
            # Of all suspects together: many have no pause at all.
            mine = float(out[: self.count].sum())
            return np.full(self.rows.size, mine / max(mine + float(others[: self.count].sum()), 1e-9))
        if condition.quantity == "step_share":
            return out / steps / np.maximum(self._step_us, 1e-9)
        return out / steps if condition.quantity == "count" else out

    def _transfer(self, condition: Condition) -> Floats:
        """Mean time of a collective once all its members are there (the shortest of their durations), ms."""
        all_, names = self.frame.collectives, self.frame.communicators
        if all_.size == 0:
            return np.full(self.rows.size, np.nan)
        pattern = str(condition.communicator)
        chosen = np.array([found(pattern, c.kind) or found(pattern, c.name) for c in names], dtype=np.bool_)
        inside = chosen[all_.slots.communicator]
        if condition.op is not None:
            operation = [found(condition.op, kind.rpartition(" ")[0]) for kind in self.frame.kinds]
            inside &= np.array(operation, dtype=np.bool_)[all_.slots.kind]
        count, total = (whole[self.rows] for whole in all_.transfers_of(inside))
        return np.where(count > 0, total / np.maximum(count, 1) / 1e3, np.nan)

    @cached_property
    def _steps(self) -> Floats:
        return self.frame.steps_of[self.rows].astype(np.float64)

    @cached_property
    def _step_us(self) -> Floats:
        total = np.bincount(self.frame.step_row, self.frame.step_us, self.frame.size)
        return np.asarray(total[self.rows] / self._steps)

    def _entries(self, row: Ints) -> tuple[Ints, Ints]:
        """Positions in ``rows`` and entries of a table whose column of rows is *row*, ascending by both."""
        place = np.full(self.frame.size + 1, -1, dtype=np.int64)
        place[self.rows] = np.arange(self.rows.size)
        at = np.flatnonzero(place[row] >= 0)
        at = at[stable_order(place[row[at]])]
        return place[row[at]], at

    @cached_property
    def suspects_text(self) -> str:
        """The suspects as people read them."""
        return say_ranks(format_ranks(self.suspects))

    @cached_property
    def peers_text(self) -> str:
        """The peers as people read them."""
        return say_ranks(format_ranks(self.peers))

    def share(self, condition: Condition) -> float:
        """Share of the suspects' main stacks, or of the functions that the cause names, in which the pattern is found."""
        if condition.looks_at == "stack":
            wanted = set(self.suspects.tolist())
            stacks = [main_stack(row) for row in self.frame.stacks if row.threads and row.rank in wanted]
            return sum(in_stack(str(condition.stack), stack) for stack in stacks) / len(stacks) if stacks else 0.0
        labels = list(self.named)
        if condition.category:
            categories = {function_label(f): f.category for f in self.frame.functions}
            labels = [label for label in labels if categories.get(label) in condition.category]
        hit = sum(any(found(str(condition.named), part) for part in label.split(" < ")) for label in labels)
        return hit / len(self.named) if self.named else 0.0


def _is(condition: Condition, name: str, stack: str, category: str, resource: str) -> bool:
    wanted = condition.category or ["compute", "memory", "python"]
    if category not in wanted or (condition.resource is not None and not fits(condition.resource, resource)):
        return False
    return found(str(condition.function), name) or in_stack(str(condition.function), stack)


def _thinned(rows: Ints) -> Ints:
    return rows if rows.size <= MAX_ROWS else rows[np.linspace(0, rows.size - 1, MAX_ROWS).astype(np.int64)]


def _ratio(upper: Floats, lower: Floats) -> Floats:
    return np.divide(upper, lower, out=np.ones_like(upper), where=lower > 0)

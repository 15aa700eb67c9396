"""The tables of many chunks as one set of columns: rows, functions and collectives numbered alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from eroica.localizer.collectives import Collectives
from eroica.localizer.lazy import Columns, Patterns
from eroica.localizer.packed import PackedChunk
from eroica.localizer.receive import ReceiveTable
from eroica.localizer.slots import ints, renamed
from eroica.localizer.tables import Floats, Ints, Pauses, Readings
from eroica.schemas.groups import FunctionName

MIXED = "mixed"
"""The resource of a function of which workers sampled different ones."""


class _Rows:
    """Rows in the frame of a table's entries, of all parts; entries of workers that are left out are taken away."""

    def __init__(self, columns: Iterable[Ints], rows: Sequence[Ints]) -> None:
        mapped = [mine[column] if mine.size else column - column - 1 for column, mine in zip(columns, rows, strict=True)]
        self._keep = [None if row.min(initial=0) >= 0 else row >= 0 for row in mapped]
        self.row: Ints = self.join(mapped, np.int64)

    def join(self, columns: Iterable[npt.NDArray[Any]], kind: type = np.float64) -> npt.NDArray[Any]:
        """A column of the table: one array a part."""
        kept = [column if keep is None else column[keep] for column, keep in zip(columns, self._keep, strict=True)]
        return np.concatenate(kept) if kept else np.empty(0, kind)


class Stacked:
    """Tables of all chunks with common numbering."""

    def __init__(self, parts: Sequence[PackedChunk], rows: Sequence[Ints], ranks: Ints, cls: Ints) -> None:
        """Stack *parts*.

        :param rows: of each part: its workers' rows in the frame, -1 for those that are left out.
        :param ranks: by row, like *cls*.
        """
        self.functions, function_of = _functions(parts)
        self.patterns = Patterns.of(parts, rows, function_of)
        steps = _Rows((p.step_row for p in parts), rows)
        self.step_row: Ints = steps.row
        self.step: Ints = steps.join((p.step for p in parts), np.int64)
        self.step_us: Floats = steps.join(p.step_us for p in parts)
        self.step_starts_us = Columns(["start"], lambda _: steps.join(p.step_start_us for p in parts))
        phases = sorted({name for p in parts for name in p.phases_us})
        self.phases_us = Columns(
            phases, lambda name: steps.join(p.phases_us[name] if name in p.phases_us else np.zeros(p.step.size) for p in parts)
        )
        self.collectives = Collectives(parts, rows, ranks, cls)
        self.pauses, self.metrics = _pauses(parts, rows), _readings(parts, rows)
        self.receive = ReceiveTable.of([part.head for part in parts], rows)


def _functions(parts: Sequence[PackedChunk]) -> tuple[list[FunctionName], list[Ints]]:
    """Every function once, and of each part the numbers of its functions.

    A function is the same whatever was sampled of it: where some hosts tell no clock of their GPUs, its times are compared all
    the same. Its μ and σ are not: its resource is then :data:`MIXED`.
    """
    number: dict[tuple[str, str, str], int] = {}
    resources: list[str] = []
    of_parts = []
    for part in parts:
        of_part = []
        for f in part.functions:
            i = number.setdefault((f.name, f.category, f.stack), len(number))
            if i == len(resources):
                resources.append(f.resource)
            elif resources[i] != f.resource:
                resources[i] = MIXED
            of_part.append(i)
        of_parts.append(ints(of_part))
    names = [FunctionName(name=n, category=c, stack=s, resource=r) for (n, c, s), r in zip(number, resources, strict=True)]
    return names, of_parts


def _pauses(parts: Sequence[PackedChunk], rows: Sequence[Ints]) -> Pauses:
    tables = [part.pauses for part in parts]
    joined = _Rows((t.row for t in tables), rows)
    what, kinds = renamed([(t.what, t.kinds) for t in tables])
    columns = [
        joined.row, joined.join(what, np.int64), joined.join((t.counts for t in tables), np.int64),
        joined.join(t.total_us for t in tables), joined.join(t.max_us for t in tables),
    ]  # fmt: skip
    order = _by_name(joined.row, columns[1], len(kinds), *columns[2:])
    row, code, count, total, longest = columns if order is None else [column[order] for column in columns]
    return Pauses(row, code, kinds, count, total, longest)


def _readings(parts: Sequence[PackedChunk], rows: Sequence[Ints]) -> Readings:
    tables = [part.readings for part in parts]
    joined = _Rows((t.row for t in tables), rows)
    name, names = renamed([(t.name, t.names) for t in tables])
    row, code, mean = joined.row, joined.join(name, np.int64), joined.join(t.mean for t in tables)
    order = _by_name(row, code, len(names), mean)
    return Readings(row, code, names, mean) if order is None else Readings(row[order], code[order], names, mean[order])


def _by_name(row: Ints, code: Ints, codes: int, *values: npt.NDArray[Any]) -> Ints | None:
    """The order by row, code and values; ``None`` if it is this. Entries of a row stand together, mostly one a code."""
    key = row * codes + code
    if bool((key[1:] > key[:-1]).all()):
        return None
    order = np.argsort(key, kind="stable")
    ranked = key[order]
    return np.lexsort((*values[::-1], key)) if bool((ranked[1:] == ranked[:-1]).any()) else order

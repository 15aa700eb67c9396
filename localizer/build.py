"""From the chunks of a request to one frame, whatever their order."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from eroica.localizer.columns import Stacked
from eroica.localizer.frame import Frame, Ints
from eroica.schemas.groups import GroupChunk
from eroica.schemas.ranks import parse_ranks


def build_frame(chunks: Iterable[GroupChunk]) -> Frame:
    """Stack the chunks of a request.

    The result does not depend on the order of *chunks*. A rank that stands in two chunks counts once, in the first class.
    A class of the request that is not among them is missing as a whole, and a note says so.
    """
    parts = sorted(chunks, key=lambda c: (c.cls, c.chunk))
    heads = {c.cls: c for c in reversed(parts)}
    workers = sorted(
        ((w.rank, part, row) for part, c in enumerate(parts) for row, w in enumerate(c.workers)), key=lambda item: item
    )
    row_of: dict[tuple[int, int], int] = {}
    kept: list[tuple[int, int]] = []
    ranks: list[int] = []
    for rank, part, row in workers:
        if not ranks or ranks[-1] != rank:
            row_of[part, row] = len(ranks)
            ranks.append(rank)
            kept.append((part, row))
    names = sorted(heads)
    at = [parts[part].workers[row] for part, row in kept]
    first = parts[0]
    lost = {name: first.request.classes.get(name, "") for name in sorted(set(first.classes) - set(heads))}
    expected = _union([*(h.expected for h in heads.values()), *lost.values()])
    inputs: dict[str, set[str]] = {}
    for head in heads.values():
        for place, offsets in head.inputs.items():
            inputs.setdefault(place, set()).update(offsets.split(","))
    columns = Stacked(parts, row_of)
    cls = np.array([names.index(parts[part].cls) for part, _ in kept], dtype=np.int64)
    executions, kinds = columns.executions(np.array(ranks, dtype=np.int64), cls)
    return Frame(
        request=first.request,
        run_id=first.run_id,
        ranks=np.array(ranks, dtype=np.int64),
        cls=cls,
        classes=names,
        hosts=[w.host for w in at],
        host_of_rank={s.rank: s.host for c in parts for s in c.stacks} | {w.rank: w.host for w in at},
        devices=[w.device for w in at],
        coords=[w.coords for w in at],
        expected=expected,
        missing=np.setdiff1d(expected, np.array(ranks, dtype=np.int64)),
        late=np.array([w.rank for w in at if w.late_by_steps > 0], dtype=np.int64),
        errors={rank: text for name in names for rank, text in sorted(heads[name].errors.items())},
        notes=_notes(heads, lost),
        inputs={place: ",".join(sorted(parts_, key=_offset)) for place, parts_ in sorted(inputs.items())},
        event_time_us=max(
            [first.request.issued_at_us, *(w.ended_at_us for w in at), *(s.ended_at_us for c in parts for s in c.stacks)]
        ),
        functions=columns.functions,
        pattern_row=columns.pattern_row,
        pattern_function=columns.pattern_function,
        pattern=columns.pattern,
        step_row=columns.step_row,
        step=columns.step,
        step_us=columns.step_us,
        step_start_us=columns.step_start_us,
        phases_us=columns.phases_us,
        communicators=columns.communicators,
        executions=executions,
        kinds=kinds,
        pauses=columns.pauses,
        metrics=columns.metrics,
        stacks=sorted((s for c in parts for s in c.stacks), key=lambda s: s.rank),
    )


def _notes(heads: dict[str, GroupChunk], lost: dict[str, str]) -> list[str]:
    notes = [
        f"class {name} (ranks {ranks or 'unknown'}) was never closed: nothing of it is known" for name, ranks in lost.items()
    ]
    for name in sorted(heads):
        head = heads[name]
        if head.closed_by != "complete":
            notes.append(
                f"class {name} was closed by {head.closed_by}: expected {head.expected}, received {head.received or 'none'}"
            )
    return notes


def _union(texts: Iterable[str]) -> Ints:
    parts = [parse_ranks(text) for text in texts]
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, dtype=np.int64)


def _offset(text: str) -> tuple[int, str]:
    head = text.partition("-")[0]
    return (int(head) if head.isdigit() else -1, text)

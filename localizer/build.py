"""From the chunks of a request to one frame, whatever their order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from eroica.localizer.columns import Stacked
from eroica.localizer.frame import Floats, Frame, Ints
from eroica.localizer.leftout import left_out
from eroica.localizer.numbering import heads_of, stable_order
from eroica.localizer.packed import PackedChunk, pack
from eroica.localizer.slots import renamed
from eroica.localizer.tables import Coords, Names
from eroica.schemas.groups import GroupChunk
from eroica.schemas.ranks import parse_ranks, say_ranks


def build_frame(chunks: Iterable[GroupChunk | PackedChunk]) -> Frame:
    """Stack the chunks of a request.

    The frame reads the chunks' large tables where they are, and joins columns of them when they are asked for.

    The result does not depend on the order of *chunks*. A rank that stands in two chunks counts once, in the first class.
    A class of the request that is not among them is missing as a whole, and a note says so. So is a worker whose summary cannot
    be held against the others' (:mod:`eroica.localizer.leftout`), with an error that says why.
    """
    parts = sorted(
        (c if isinstance(c, PackedChunk) else pack(c) for c in chunks), key=lambda part: (part.head.cls, part.head.chunk)
    )
    whole, told = _frame(parts, {})
    without = left_out(whole, told)
    return _frame(parts, without)[0] if without else whole


def _frame(parts: list[PackedChunk], without: Mapping[int, str]) -> tuple[Frame, Ints]:
    """The frame of *parts*, and how many executions of collectives each of its workers tells of.

    :param without: rank → why it is left out.
    """
    heads = {part.head.cls: part.head for part in reversed(parts)}
    names = sorted(heads)
    all_ranks = np.concatenate([part.workers.ranks for part in parts])
    order = stable_order(all_ranks)
    order = order[heads_of(all_ranks[order])]
    if without:
        order = order[~np.isin(all_ranks[order], list(without))]
    ranks = all_ranks[order]
    row_of = np.full(all_ranks.size, -1, dtype=np.int64)
    row_of[order] = np.arange(order.size)
    size = [part.workers.ranks.size for part in parts]
    rows = np.split(row_of, np.cumsum(size)[:-1])
    cls = np.repeat(np.array([names.index(part.head.cls) for part in parts], dtype=np.int64), size)[order]
    workers = [part.workers for part in parts]
    late, ended = np.concatenate([w.late for w in workers])[order], np.concatenate([w.ended_at_us for w in workers])[order]
    first = parts[0].head
    lost = {name: first.request.classes.get(name, "") for name in sorted(set(first.classes) - set(heads))}
    expected = _union([*(h.expected for h in heads.values()), *lost.values()])
    inputs: dict[str, set[str]] = {}
    for head in heads.values():
        for place, offsets in head.inputs.items():
            inputs.setdefault(place, set()).update(offsets.split(","))
    columns = Stacked(parts, rows, ranks, cls)
    stacks = sorted((s for part in parts for s in part.head.stacks), key=lambda s: s.rank)
    told = [np.bincount(part.executions.row, minlength=n) for part, n in zip(parts, size, strict=True)]
    frame = Frame(
        request=first.request,
        run_id=first.run_id,
        ranks=ranks,
        cls=cls,
        classes=names,
        hosts=_names([w.hosts for w in workers], order),
        devices=_names([w.devices for w in workers], order),
        coords=Coords.joined([w.coords for w in workers]).at(order),
        expected=expected,
        missing=expected[~np.isin(expected, ranks)],
        late=ranks[late],
        errors={rank: text for name in names for rank, text in sorted(heads[name].errors.items())}
        | {str(rank): why for rank, why in without.items()},
        notes=_notes(heads, lost),
        inputs={place: ",".join(sorted(parts_, key=_offset)) for place, parts_ in sorted(inputs.items())},
        event_time_us=max([first.request.issued_at_us, int(ended.max(initial=0)), *(s.ended_at_us for s in stacks)]),
        functions=columns.functions,
        patterns=columns.patterns,
        step_row=columns.step_row,
        step=columns.step,
        step_us=columns.step_us,
        step_starts_us=columns.step_starts_us,
        phases_us=columns.phases_us,
        collectives=columns.collectives,
        pauses=columns.pauses,
        metrics=columns.metrics,
        receive=columns.receive,
        stacks=stacks,
        launch_bound=_typical(np.concatenate([w.launch_bound for w in workers])),
    )
    return frame, np.concatenate(told)[order]


def _typical(shares: Floats) -> float:
    known = shares[shares > 0]
    return float(np.median(known)) if known.size else 0.0


def _names(parts: list[Names], order: Ints) -> Names:
    """The names of all parts, in *order*."""
    codes, known = renamed([(names.code, names.names) for names in parts])
    return Names(np.concatenate(codes)[order], known)


def _notes(heads: dict[str, GroupChunk], lost: dict[str, str]) -> list[str]:
    notes = [
        f"class {name} ({say_ranks(ranks) if ranks else 'ranks unknown'}) was never closed: nothing of it is known"
        for name, ranks in lost.items()
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
    together = np.sort(np.concatenate(parts)) if parts else np.empty(0, dtype=np.int64)
    return together[heads_of(together)]


def _offset(text: str) -> tuple[int, str]:
    head = text.partition("-")[0]
    return (int(head) if head.isdigit() else -1, text)

"""One file's traces, summarised and shown to a person."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from eroica.consumers.text import one_line
from eroica.offline.recording import refuse_recording
from eroica.producers.trace.frontend import Opened, open_workers
from eroica.producers.trace.identity import identify
from eroica.producers.trace.summarise import identity_from_trace, summarise
from eroica.schemas.errors import InvalidInput
from eroica.schemas.sketch import quantile
from eroica.schemas.summaries import Communicator, Summary
from eroica.schemas.wording import say_steps

UNKNOWN = -1
"""Rank of a trace that tells none. Alone it can be looked at all the same; to compare ranks theirs must be known."""
MAX_ROWS = 12
NAME_WIDTH = 70


def summarize_file(path: Path, rank: int | None = None) -> list[Summary]:
    """Summarise each worker of *path*, ascending by rank.

    :param rank: the first worker's; the others follow. Without it a trace that does not tell its rank is that of an unknown one.
    :raises InvalidInput: it cannot be read as a trace.
    :raises UsageError: it is a recording.
    """
    if path.suffix == ".parquet":
        raise InvalidInput("a timeline of operations has no summary", where=str(path), do=f"eroica diagnose {path.name}")
    refuse_recording(path)
    if path.is_dir():
        raise InvalidInput("a folder holds traces of many ranks", where=str(path), do=f"compare them: eroica diagnose {path}")
    return [_summarize(opened, rank) for opened in open_workers(path)]


def _summarize(opened: Opened, rank: int | None) -> Summary:
    given = None if rank is None else rank + opened.place
    if given is None and opened.places > 1:
        given = opened.place  # the export tells GPUs, not ranks: they are numbered, and the summary says so
    told = identify(opened.trace, opened.path)
    unknown = given is None and told.rank < 0
    who = identity_from_trace(opened.trace, opened.path, job="offline", rank=0 if unknown else given)
    if unknown:
        who = msgspec.structs.replace(who, rank=UNKNOWN, world_size=told.world_size)
    elif opened.places > 1:
        world = max(who.world_size, who.rank - opened.place + opened.places)
        who = msgspec.structs.replace(who, world_size=world)
    else:
        who = msgspec.structs.replace(who, world_size=told.world_size)
    notes = (f"{opened.path.name} tells no ranks: rank {who.rank} is {opened.part}",) if opened.part else ()
    if unknown:
        notes = (*notes, f"neither the trace nor its name tells its rank, so it is {UNKNOWN} here: --rank N tells it")
    return summarise(opened.path, who, extras=replace(opened.extras, notes=(*notes, *opened.extras.notes)), trace=opened.trace)


def render_summary(summary: Summary) -> RenderableType:
    """Who and when, functions by time on the critical path, phases of a step, communicators, pauses, what is missing."""
    who = summary.who
    parts: list[RenderableType] = [
        Text(f"{_who(summary)} on {one_line(who.host, 60) or 'an unnamed host'}", style="bold"),
        Text(
            f"{say_steps(summary.first_step, summary.last_step)}, {summary.window_us / 1e3:.1f} ms"
            + (f", {one_line(who.device, 60)}" if who.device else "")
        ),
        Text(),
        _functions(summary),
        _phases(summary),
    ]
    if summary.communicators:
        parts.append(_communicators(summary.communicators))
        if any(c.traffic for c in summary.communicators):
            parts.append(_traffic(summary.communicators))
    if summary.pauses:
        parts.append(_pauses(summary))
    figures = ", ".join(f"{name} {value:.4g}" for name, value in summary.figures.items())
    parts += [Text(line) for line in (figures, *(f"note: {one_line(note)}" for note in summary.notes)) if line]
    parts += [Text(f"lost: {count} {one_line(name)}") for name, count in sorted(summary.lost.items())]
    return Group(*parts)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", overflow="ellipsis" if number == 0 else "fold")
    return table


def _who(summary: Summary) -> str:
    rank = "an unknown rank" if summary.who.rank == UNKNOWN else f"rank {summary.who.rank}"
    return f"{rank} of {summary.who.world_size}" if summary.who.world_size else rank


def _functions(summary: Summary) -> Table:
    columns = ("name", "kind", "share", "ms", "count", "p50", "p90", "p99", "max")
    table = _table("functions on the critical path; p50 to max: ms of an execution", *columns)
    for f in summary.functions[:MAX_ROWS]:
        table.add_row(
            Text(one_line(f.name, NAME_WIDTH)),
            f.category,
            f"{f.beta:.1%}",
            _ms(f.exclusive_us),
            str(f.count),
            *(_ms(us) for us in (f.p50_us, f.p90_us, f.p99_us, f.max_us)),
        )
    return table


def _ms(us: float) -> str:
    """Milliseconds, short: three decimals below 10, then one, then none."""
    return f"{us / 1e3:.{3 if us < 9_999.5 else 1 if us < 999_950 else 0}f}"


def _phases(summary: Summary) -> Table:
    names = list(dict.fromkeys(name for step in summary.steps for name in step.phases_us))
    table = _table("steps, ms", "step", "total", *(one_line(name, 20) for name in names))
    for step in summary.steps[:MAX_ROWS]:
        table.add_row(
            str(step.step), f"{step.duration_us / 1e3:.2f}", *(f"{step.phases_us.get(name, 0.0) / 1e3:.2f}" for name in names)
        )
    return table


def _communicators(communicators: list[Communicator]) -> Table:
    table = _table("communicators", "name", "kind", "ranks", "operations", "executions", "total ms", "MB")
    for c in communicators[:MAX_ROWS]:
        operations = sorted({slot.op for slot in c.slots})
        table.add_row(
            Text(one_line(c.name, 30)),
            Text(one_line(c.kind, 30)),
            Text(one_line(c.ranks, 20) or f"{c.size or '?'} members"),
            Text(one_line(", ".join(operations), 40)),
            str(sum(slot.count for slot in c.slots)),
            f"{sum(slot.total_us for slot in c.slots) / 1e3:.2f}",
            f"{sum(slot.bytes * slot.count for slot in c.slots) / 1e6:.2f}",
        )
    return table


def _traffic(communicators: list[Communicator]) -> Table:
    """What took longest; bandwidths as algorithm, bus, and bus of the fastest execution."""
    columns = ("communicator", "operation", "up to", "type", "count", "p50 ms", "p99 ms", "Gb/s", "bus Gb/s", "best")
    table = _table("collectives by kind and size", *columns)
    longest = sorted(((c, t) for c in communicators for t in c.traffic), key=lambda pair: -pair[1].total_us)
    for c, t in longest[:MAX_ROWS]:
        p50, p99 = (quantile(t.sketch, q) if t.sketch is not None else t.max_us for q in (0.5, 0.99))
        rates = [f"{rate:.1f}" if rate else "?" for rate in (t.algorithm_gbps, t.bus_gbps, t.best_bus_gbps)]
        what = Text(one_line(c.name, 30)), Text(one_line(t.op, 20)), _size(t.up_to_bytes), Text(one_line(t.dtype, 12))
        table.add_row(*what, str(t.count), f"{p50 / 1e3:.3f}", f"{p99 / 1e3:.3f}", *rates)
    return table


def _size(count: int) -> str:
    """A power of two of bytes."""
    for step, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >> step:
            return f"{count >> step} {unit}"
    return f"{count} B" if count else "?"


def _pauses(summary: Summary) -> Table:
    table = _table("pauses", "what", "count", "total ms", "max ms")
    for pause in summary.pauses[:MAX_ROWS]:
        table.add_row(
            Text(one_line(pause.what, 30)), str(pause.count), f"{pause.total_us / 1e3:.2f}", f"{pause.max_us / 1e3:.2f}"
        )
    return table

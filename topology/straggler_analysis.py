"""Reads operation timelines as ByteDance-Seed/StragglerAnalysis publishes them, into a step graph and its times.

A row is an operation of one worker: dp_rank, stage, rank, step, optype, start_ts and duration (seconds), seq_id (its
place among its kind), mc and gmc (model chunk in the stage and in the model). All replicas and steps share one dependency
graph, read off the first replica's first step of the usual length (the dependency model of OSDI '25, §4.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from eroica.schemas.errors import InvalidInput, MissingDependency, extra_missing
from eroica.schemas.ranks import RankArray, format_ranks
from eroica.topology.clocks import align_clocks
from eroica.topology.stepgraph import FloatArray, StepGraph
from eroica.topology.timeline import COMMUNICATION, Meeting, Row, build_graph, meeting_transfer
from eroica.topology.timeline_ranks import Places, contradictions, places, without_stages
from eroica.topology.timeline_stages import later_stages, stages_by_chunks
from eroica.topology.whatif import WhatIf

__all__ = ["COLUMNS", "COMMUNICATION", "Timeline", "is_timeline", "read_timeline"]

COLUMNS = ("dp_rank", "stage", "step", "optype", "start_ts", "duration")
"""Columns that a timeline must have."""
DERIVED = ("rank", "seq_id", "mc", "gmc")
"""Columns that follow from the others where they are missing: plain ranks, places by start, one chunk a stage."""
ORDER = "check that every worker is in it, and that start_ts and seq_id follow the order of a worker's operations"
TIMED = ("start_ts", "duration")
MAX_ROWS = 50_000_000
"""A table beyond this does not fit beside its graph."""


@dataclass(frozen=True)
class Timeline:
    """A job's timeline, ready to be asked. Lanes are data-parallel ranks."""

    graph: StepGraph
    start_s: FloatArray
    """Shape (ops, lanes, steps): as measured, from the start of the step."""
    duration_s: FloatArray
    transfer_s: FloatArray
    """Time of compute, transfer (waiting taken off) of meetings: what ``WhatIf`` takes."""
    steps: RankArray
    who: Places
    """Which replica each lane is, and the ranks of its workers."""
    notes: tuple[str, ...] = ()
    ended_s: float = 0.0
    """The latest end as the file tells it."""
    meetings: tuple[Meeting, ...] = ()
    """Operations that end together."""
    contradict: bool = False
    """Whether the recorded times contradict each other, so that transfers and waits are uncertain."""

    def what_if(self) -> WhatIf:
        """The questions of the published analysis, with its definitions."""
        return WhatIf(self.graph, self.transfer_s, COMMUNICATION)


def is_timeline(path: Path) -> bool:
    """Whether a file looks like such a timeline, by its name and first bytes."""
    if path.suffix != ".parquet" or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def read_timeline(path: Path) -> Timeline:
    """Read a timeline from a parquet file.

    Steps in which a worker's operation is missing, without a time, or double are left out, and that is noted.

    :raises MissingDependency: without pyarrow.
    :raises InvalidInput: if the file is not such a table, a worker has no rows, or no step is complete.
    """
    columns = _read_columns(path)
    try:
        return _timeline(columns)
    except InvalidInput as error:
        raise InvalidInput(error.what, where=str(path), do=error.do or ORDER) from error


def _read_columns(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        pa, pq = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingDependency(
            "reading parquet timelines needs pyarrow", where=str(path), do=extra_missing("timelines")
        ) from error
    try:
        file = pq.ParquetFile(path)
        if file.metadata.num_rows > MAX_ROWS:
            raise InvalidInput(f"the table has more than {MAX_ROWS} rows", where=str(path))
        missing = [c for c in COLUMNS if c not in file.schema_arrow.names]
        if missing:
            do = f"a timeline has {', '.join(COLUMNS)}, and may have {', '.join(DERIVED)}"
            raise InvalidInput(f"the table has no column {missing[0]!r}", where=str(path), do=do)
        wanted = [*COLUMNS, *(c for c in DERIVED if c in file.schema_arrow.names)]
        table = file.read(columns=wanted)
        gaps = [c for c in wanted if table[c].null_count and c not in TIMED]
        if gaps:
            raise InvalidInput(f"column {gaps[0]!r} has {table[gaps[0]].null_count} empty cells", where=str(path))
        kind = np.array(table["optype"].cast(pa.string()).to_pylist(), dtype=np.str_)
        columns: dict[str, npt.NDArray[Any]] = {
            name: table[name].to_numpy().astype(np.float64 if name in TIMED else np.int64) for name in wanted if name != "optype"
        }
    except (OSError, pa.ArrowException, ValueError, TypeError) as error:
        raise InvalidInput(f"the file is not a readable timeline ({error})", where=str(path)) from error
    columns["optype"] = kind
    return columns


def _timeline(columns: dict[str, npt.NDArray[Any]]) -> Timeline:
    if columns["step"].size == 0:
        raise InvalidInput("the timeline is empty")
    columns, untimed = _timed(columns)
    if min(int(columns["dp_rank"].min()), int(columns["stage"].min())) < 0:
        raise InvalidInput("a replica or stage is negative")
    if (int(columns["dp_rank"].max()) + 1) * (int(columns["stage"].max()) + 1) > columns["step"].size:
        raise InvalidInput("the timeline names far more replicas or stages than it has rows")
    derived = _derive(columns)
    who = places(columns["dp_rank"], columns["stage"], columns.get("rank"))
    _everybody(columns, who)
    columns["dp_rank"], lanes = np.searchsorted(who.lanes, columns["dp_rank"]), who.lanes.size
    if int(columns["seq_id"].min()) < 0:
        raise InvalidInput("a sequence number is negative")
    if int(columns["seq_id"].max()) > columns["step"].size:
        raise InvalidInput("the timeline names far more sequence numbers than it has rows")
    if (columns["duration"] < 0).any() or not columns["duration"].any():
        raise InvalidInput("a duration is negative, or no time passes")
    steps = np.unique(columns["step"])
    template = _first(columns, steps)
    rows = [
        Row(
            stage=int(columns["stage"][i]),
            kind=str(columns["optype"][i]),
            seq=int(columns["seq_id"][i]),
            chunk=max(int(columns["mc"][i]), 0),
            global_chunk=int(columns["gmc"][i]),
            start=float(columns["start_ts"][i]),
            end=float(columns["start_ts"][i] + columns["duration"][i]),
        )
        for i in template
    ]
    if len(rows) * lanes * steps.size > 8 * columns["step"].size + 1_000_000:
        raise InvalidInput("most workers have far fewer operations than the first one")
    if len({(r.stage, r.kind, r.seq) for r in rows}) != len(rows):
        raise InvalidInput("an operation of the first worker has the sequence number of another")
    later = later_stages(rows)
    if later is not None:
        who = without_stages(who, later.first, later.count, later.sure, later.why)
    graph, meetings = build_graph(rows, lanes, stages_by_chunks(rows))
    start, duration, complete = _spread(columns, rows, steps, lanes)
    if not complete.any():
        raise InvalidInput("no step has every operation of every worker", do="check that all workers were recorded")
    notes = (
        [*untimed]
        if complete.all()
        else [*untimed, f"{int((~complete).sum())} of {steps.size} steps are incomplete and left out"]
    )
    notes += [f"the table has no column {name!r}: derived from the others" for name in derived]
    duration = duration[:, :, complete]
    ended = float((columns["start_ts"] + columns["duration"]).max())
    clocks = align_clocks(graph, meetings, start[:, :, complete], duration)
    start, notes = clocks.start_s, [*who.notes, *contradictions(columns), *notes, *clocks.notes]
    transfer = meeting_transfer(meetings, start, duration)
    return Timeline(
        graph, start, duration, transfer, steps[complete], who, tuple(notes), ended, tuple(meetings), clocks.contradict
    )


def _timed(columns: dict[str, npt.NDArray[Any]]) -> tuple[dict[str, npt.NDArray[Any]], list[str]]:
    """The rows whose times are numbers, and a note of how many have none: like a row that is missing they cost their step."""
    sound = {name: np.isfinite(columns[name]) for name in TIMED}
    keep = np.logical_and.reduce(list(sound.values()))
    if keep.all():
        return columns, []
    names = [repr(name) for name, has in sound.items() if not has.all()]
    where = f"column{'s' if len(names) > 1 else ''} {' and '.join(names)}"
    gone, rows = int((~keep).sum()), keep.size
    if not keep.any():
        raise InvalidInput(f"{where}: no row has a number for its times")
    note = (
        f"{gone} of {rows} rows {'has' if gone == 1 else 'have'} no number in {where} and {'is' if gone == 1 else 'are'} left out"
    )
    return {name: values[keep] for name, values in columns.items()}, [note]


def _everybody(columns: dict[str, npt.NDArray[Any]], who: Places) -> None:
    """That each worker has rows.

    :raises InvalidInput: names those that have none.
    """
    here = np.zeros(who.rank_of.shape, dtype=bool)
    here[np.searchsorted(who.lanes, columns["dp_rank"]), columns["stage"]] = True
    gone = np.argwhere(~here)
    if not gone.size:
        return
    empty = np.flatnonzero(~here.any(axis=0))
    if empty.size:
        raise InvalidInput(
            f"stage {format_ranks(empty)} has no rows in any replica, though later stages have", do="record every stage"
        )
    named = ", ".join(f"dp {who.lanes[d]}, stage {s}" for d, s in gone[:5].tolist())
    more = f" and {len(gone) - 5} more workers" if len(gone) > 5 else ""
    raise InvalidInput(f"no row is of {named}{more}", do="record every worker, or leave the replica out altogether")


def _derive(columns: dict[str, npt.NDArray[Any]]) -> list[str]:
    """Fill in the columns that are missing, ranks excepted; the names of all."""
    absent = [name for name in DERIVED if name not in columns]
    computes = np.char.endswith(columns["optype"], "-compute")
    if "seq_id" in absent:
        _, kind = np.unique(columns["optype"], return_inverse=True)
        keys = (columns["step"], columns["dp_rank"], columns["stage"], kind)
        order = np.lexsort((columns["start_ts"], *keys))
        new = np.ones(order.size, dtype=bool)
        new[1:] = np.any([np.diff(k[order]) != 0 for k in keys], axis=0)
        begin = np.maximum.accumulate(np.where(new, np.arange(order.size), 0))
        columns["seq_id"] = np.empty(order.size, dtype=np.int64)
        columns["seq_id"][order] = np.arange(order.size) - begin
    if "mc" in absent:
        columns["mc"] = np.where(computes, 0, -1)
    if "gmc" in absent:
        if int(columns["mc"].max()) > 0:
            raise InvalidInput("the table has several chunks a stage, but no column 'gmc' that says which of the model they are")
        columns["gmc"] = np.where(computes, columns["stage"], -1)
    return absent


def _first(columns: dict[str, npt.NDArray[Any]], steps: RankArray) -> list[int]:
    """Rows of the first replica's first step that is as long as most, in the order in which they started."""
    first = np.flatnonzero(columns["dp_rank"] == 0)
    if first.size == 0:
        raise InvalidInput("the first replica has no operation")
    counts = np.bincount(np.searchsorted(steps, columns["step"][first]), minlength=steps.size)
    sizes, often = np.unique(counts[counts > 0], return_counts=True)
    usual = int(sizes[::-1][often[::-1].argmax()])
    step = steps[int(np.flatnonzero(counts == usual)[0])]
    mine = first[columns["step"][first] == step]
    order = np.lexsort((columns["optype"][mine], columns["seq_id"][mine], columns["start_ts"][mine]))
    return [int(i) for i in mine[order]]


def _spread(
    columns: dict[str, npt.NDArray[Any]], rows: list[Row], steps: RankArray, lanes: int
) -> tuple[FloatArray, FloatArray, npt.NDArray[np.bool_]]:
    """Starts and durations in arrays of shape (ops, lanes, steps), and which steps have each operation exactly once."""
    number = {(r.stage, r.kind, r.seq): i for i, r in enumerate(rows)}
    kinds, kind_code = np.unique(columns["optype"], return_inverse=True)
    seqs = int(columns["seq_id"].max()) + 1
    stages = int(columns["stage"].max()) + 1
    code = (columns["stage"] * kinds.size + kind_code) * seqs + columns["seq_id"]
    table = np.full(stages * kinds.size * seqs, -1, dtype=np.int64)
    names = {str(k): i for i, k in enumerate(kinds)}
    for (stage, kind, seq), op in number.items():
        table[(stage * kinds.size + names[kind]) * seqs + seq] = op
    op = table[code]
    at_step = np.searchsorted(steps, columns["step"])
    begin = np.full(steps.size, np.inf)
    np.minimum.at(begin, at_step, columns["start_ts"])
    known = op >= 0
    count = np.zeros((len(rows), lanes, steps.size), dtype=np.int64)
    np.add.at(count, (op[known], columns["dp_rank"][known], at_step[known]), 1)
    complete = np.asarray((count == 1).all(axis=(0, 1)))
    complete[at_step[~known]] = False
    start = np.zeros(count.shape)
    duration = np.zeros(count.shape)
    where = (op[known], columns["dp_rank"][known], at_step[known])
    start[where] = columns["start_ts"][known] - begin[at_step[known]]
    duration[where] = columns["duration"][known]
    return start, duration, complete

"""Which traces of a folder belong together: one run, one trace a rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eroica.producers.trace.columns import Trace
from eroica.producers.trace.identity import identify
from eroica.schemas.errors import InvalidInput

SUFFIXES = (".json", ".json.gz")
MAX_FILES = 100_000


@dataclass(frozen=True, slots=True)
class Found:
    """A trace in a folder. Times in µs on the clock that the traces share."""

    path: Path
    rank: int
    start_us: float
    end_us: float

    @classmethod
    def of(cls, trace: Trace, path: Path) -> Found:
        """What a trace that was read tells; rank -1 where it does not."""
        end = float(trace.end_us.max()) if len(trace) else 0.0
        return cls(path, identify(trace, path).rank, trace.origin_us, trace.origin_us + end)


def trace_files(folder: str | Path) -> list[Path]:
    """All trace files under a folder, by name; side files are none.

    :raises InvalidInput: no such folder, none found, or more than :data:`MAX_FILES`.
    """
    place = Path(folder)
    if not place.is_dir():
        raise InvalidInput("there is no such folder", where=str(folder), do="give the folder that holds the ranks' traces")
    files = sorted(p for p in place.rglob("*.json*") if p.name.endswith(SUFFIXES) and not p.name.endswith(".side.json"))
    if not files or len(files) > MAX_FILES:
        what = "it holds no .json or .json.gz file" if not files else f"it holds more than {MAX_FILES} files"
        raise InvalidInput(what, where=str(folder), do="give the folder that holds the ranks' traces")
    return files


def one_run(found: Sequence[Found]) -> tuple[list[Found], list[str]]:
    """Choose the traces of one run, ascending by rank, and say what was left out.

    Ranks that occur once only need no choice. Otherwise traces whose times overlap form a run; the run with the most
    ranks counts, the later one of equals.

    :raises InvalidInput: a trace that tells no rank, or a rank that occurs twice within one run.
    """
    for trace in found:
        if trace.rank < 0:
            raise InvalidInput(
                "neither the trace nor its name tells the rank",
                where=str(trace.path),
                do="name the files rank0.json, rank1.json, …",
            )
    if max(Counter(t.rank for t in found).values(), default=0) <= 1:
        return sorted(found, key=lambda t: t.rank), []
    runs = _by_time(found)
    chosen = max(runs, key=lambda run: (len({t.rank for t in run}), run[0].start_us))
    twice = [rank for rank, count in Counter(t.rank for t in chosen).items() if count > 1]
    if twice:
        paths = [str(t.path) for t in chosen if t.rank == min(twice)]
        raise InvalidInput(
            f"rank {min(twice)} occurs twice in one run", where=", ".join(paths[:3]), do="leave one of them in the folder"
        )
    left = len(found) - len(chosen)
    note = (
        f"the folder holds {len(runs)} runs: the one with {len(chosen)} traces counts, {left} traces of the others were left out"
    )
    return sorted(chosen, key=lambda t: t.rank), [note]


def _by_time(found: Sequence[Found]) -> list[list[Found]]:
    runs: list[list[Found]] = []
    end = float("-inf")
    for trace in sorted(found, key=lambda t: (t.start_us, t.rank, str(t.path))):
        if trace.start_us > end or not runs:
            runs.append([])
        runs[-1].append(trace)
        end = max(end, trace.end_us)
    return runs

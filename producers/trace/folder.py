"""Which traces of a folder belong together: one run, one trace a rank."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from eroica.producers.trace.filenames import (
    folder_of_place,
    place_of_file,
    rank_of_place,
    ranks_by_place,
    says_rank,
    step_of_place,
)
from eroica.producers.trace.frontend import Opened
from eroica.producers.trace.listing import relative_to
from eroica.schemas.errors import InvalidInput, UsageError
from eroica.schemas.wording import say_count

_NUMBER = re.compile(r"([0-9]{1,8})")
_LOCAL = re.compile(r"(?:local|node|[tpdec]p)[_-]?(?:rank)?[_-]?$", re.IGNORECASE)
"""Such numbers are no ranks of the job."""
_NEAR = (slice(-12, None), slice(0, 1))
"""So much of the text before a number and after it tells which one it is."""
MAX_NAMED = 5
"""Runs and files that a note names."""
_BY_PATH: tuple[Callable[[PurePath], str], ...] = (step_of_place, folder_of_place)
"""By what paths tell runs apart, in order."""


@dataclass(frozen=True, slots=True)
class Found:
    """A worker's trace in a folder. Times in µs on the clock that the traces share."""

    path: Path
    rank: int
    start_us: float
    end_us: float
    events: int = 0
    source: str = ""
    """What told the rank: ``option``, ``distributed_info``, ``file_name``, ``place`` or empty."""
    place: int = 0
    places: int = 1
    part: str = ""
    node: str = ""
    """The folder that was taken as its node; empty if none was."""

    @classmethod
    def of(cls, opened: Opened, rank: int | None = None, root: Path | None = None) -> Found:
        """What a worker that was read tells; rank -1 where it does not.

        :param rank: the user's word, which beats it.
        :param root: the folder that was given: its own name is no trace's.
        """
        trace, told = opened.trace, opened.told
        if root is not None and opened.places == 1 and told.rank_source != "distributed_info":
            by_place = rank_of_place(relative_to(opened.path, root))
            told = replace(told, rank=by_place, rank_source="file_name" if by_place >= 0 else "")
        end = float(trace.end_us.max()) if len(trace) else 0.0
        return cls(
            path=opened.path,
            rank=told.rank if rank is None else rank,
            start_us=trace.origin_us,
            end_us=trace.origin_us + end,
            events=len(trace),
            source=told.rank_source if rank is None else "option",
            place=opened.place,
            places=opened.places,
            part=opened.part,
        )


def name_ranks(found: Sequence[Found]) -> tuple[list[Found], list[str]]:
    """Give ranks to traces that tell none themselves: by the names' places in a layout, or by the GPUs of one export.

    Returns the same traces in the same order, and what was assumed.
    """
    named, notes = list(found), list[str]()
    if found and all(one.rank < 0 and one.places == 1 for one in found):
        groups: dict[str, list[int]] = {}
        for i, one in enumerate(found):
            groups.setdefault(step_of_place(PurePath(one.path)), []).append(i)
        for members in groups.values():
            ranks = ranks_by_place([place_of_file(found[i].path) for i in members])
            for i, rank in zip(members, ranks, strict=True):
                named[i] = replace(found[i], rank=rank, source="place" if rank >= 0 else "")
        if all(one.rank >= 0 for one in named):
            notes.append("the traces tell no ranks: they are taken from TP, PP and DP in the files' names, TP first")
    for one in found:
        by_name = says_rank(one.path.name)
        if one.source == "distributed_info" and by_name not in (-1, one.rank):
            notes.append(f"{one.path.name} says inside that it is rank {one.rank}'s: that counts, not its name")
    several = {one.path for one in found if one.places > 1}
    for i, one in enumerate(found):
        if one.places == 1:
            continue
        if one.source == "option":  # the user's number is the first worker's
            named[i] = replace(one, rank=one.rank + one.place)
        elif len(several) == 1 and all(other.path == one.path for other in found):
            named[i] = replace(one, rank=one.place, source="place")
        if named[i].rank >= 0:
            notes.append(f"{one.path.name} tells no ranks: rank {named[i].rank} is {one.part}")
    return named, _shortened(notes)


def unknown_rank(found: Found, pattern: str = "") -> InvalidInput:
    """That nothing tells whose trace it is, and how to say it.

    :param pattern: finds a number in the names that may be the rank.
    """
    return InvalidInput(
        "neither the trace nor its name tells the rank" + (f" of {found.part}" if found.part else ""),
        where=str(found.path),
        do=f"give it: --rank FILE=N, or --rank-from '{pattern or 'REGEX'}' {'if that number is' if pattern else 'with'} the rank"
        + ("" if pattern else " as its group")
        + ("; N is the first worker's rank" if found.places > 1 else ""),
    )


def one_run(found: Sequence[Found], root: Path = Path(), job: str = "") -> tuple[list[Found], list[str]]:
    """Choose the traces of one run, ascending by rank, and say what was left out.

    Ranks that occur once only need no choice. Otherwise the folder is parted by steps in the paths (``iteration_10/``), then by
    folders, then by time (traces whose times overlap form a run), as far as ranks occur twice. The run with the most ranks
    counts, the later one of equals.

    :param job: the name of a run as the note gives it, or a part that only one has.
    :raises InvalidInput: a trace that tells no rank, or a rank that occurs twice within one run.
    :raises UsageError: no run of that name.
    """
    for trace in found:
        if trace.rank < 0:
            raise unknown_rank(trace, numbered(relative_to(one.path, root).as_posix() for one in found))
    single, notes = _without_copies(found)
    runs = [("", single)]
    for key_of in _BY_PATH:
        runs = [part for name, run in runs for part in (_by_key(name, run, root, key_of) if _twice(run) else [(name, run)])]
    runs = [part for name, run in runs for part in (_by_time(name, run) if _twice(run) else [(name, run)])]
    for key_of in _BY_PATH:
        if job and not any(job in name for name, _ in runs):
            runs = [part for name, run in runs for part in _by_key(name, run, root, key_of)]
    name, chosen = _choose(runs, job)
    if twice := _twice(chosen):
        paths = [str(t.path) for t in chosen if t.rank == min(twice)]
        raise InvalidInput(
            f"rank {min(twice)} occurs twice in one run", where=", ".join(paths[:3]), do="leave one of them in the folder"
        )
    if len(runs) > 1:
        shown = ", ".join(f"{n or 'the folder itself'} ({len(run)})" for n, run in runs[:MAX_NAMED])
        more = f" and {len(runs) - MAX_NAMED} more" if len(runs) > MAX_NAMED else ""
        others = len(single) - len(chosen)
        chosen_name = name or "the folder itself"
        notes.append(
            f"the folder holds {len(runs)} runs ({shown}{more}): {chosen_name} with {say_count(len(chosen), 'trace')} counts, "
            f"{say_count(others, 'trace')} of the others {'was' if others == 1 else 'were'} left out"
        )
    return sorted(chosen, key=lambda t: t.rank), notes


def numbered(names: Iterable[str]) -> str:
    """A pattern for the one number that names, otherwise alike, count from 0; empty if there is no such one."""
    parts = [_NUMBER.split(name) for name in names]
    texts = {tuple(part[::2]) for part in parts}
    if len(parts) < 2 or len(texts) > 1:
        return ""
    columns = list(zip(*(part[1::2] for part in parts), strict=True))
    counting = [i for i, column in enumerate(columns) if sorted(map(int, column)) == list(range(len(parts)))]
    if len(counting) != 1 or any(len(set(column)) > 1 for i, column in enumerate(columns) if i != counting[0]):
        return ""
    before, after = (text[side] for text, side in zip(texts.pop()[counting[0] : counting[0] + 2], _NEAR, strict=True))
    return "" if _LOCAL.search(before) else f"{re.escape(before)}([0-9]+){re.escape(after)}"


def _choose(runs: list[tuple[str, list[Found]]], job: str) -> tuple[str, list[Found]]:
    if job:
        exact = [run for run in runs if run[0] == job]
        named = exact or [run for run in runs if job in run[0]]
        if len(named) != 1:
            names = ", ".join(repr(name) for name, _ in runs[:MAX_NAMED])
            raise UsageError(
                f"{'no run' if not named else 'more than one run'} is called {job!r}", where="--job", do=f"the runs are {names}"
            )
        return named[0]
    return max(runs, key=lambda run: (len({t.rank for t in run[1]}), run[1][0].start_us))


def _without_copies(found: Sequence[Found]) -> tuple[list[Found], list[str]]:
    """A trace that lies twice in one folder, say plain and compressed, counts once."""
    kept: dict[tuple[Path, int, float, float, int], Found] = {}
    notes = []
    for trace in sorted(found, key=lambda t: (str(t.path), t.place)):
        key = (trace.path.parent, trace.rank, trace.start_us, trace.end_us, trace.events)
        if trace.events and key in kept:
            notes.append(f"{trace.path.name} holds the same trace as {kept[key].path.name} and was left out")
        else:
            kept[key if trace.events else (trace.path, len(kept), -1.0, -1.0, -1)] = trace
    return list(kept.values()), _shortened(notes)


def _twice(run: Sequence[Found]) -> list[int]:
    return [rank for rank, count in Counter(t.rank for t in run).items() if count > 1]


def _by_key(name: str, run: list[Found], root: Path, key_of: Callable[[PurePath], str]) -> list[tuple[str, list[Found]]]:
    parts: dict[str, list[Found]] = {}
    for trace in run:
        parts.setdefault(key_of(relative_to(trace.path, root)), []).append(trace)
    if len(parts) == 1:
        return [(name, run)]
    return [("/".join(filter(None, (name, part))), members) for part, members in sorted(parts.items())]


def _by_time(name: str, found: list[Found]) -> list[tuple[str, list[Found]]]:
    runs: list[list[Found]] = []
    end = float("-inf")
    for trace in sorted(found, key=lambda t: (t.start_us, t.rank, str(t.path))):
        if trace.start_us > end or not runs:
            runs.append([])
        runs[-1].append(trace)
        end = max(end, trace.end_us)
    return [("/".join(filter(None, (name, f"#{number}"))), run) for number, run in enumerate(runs, 1)]


def _shortened(notes: list[str]) -> list[str]:
    return notes if len(notes) <= MAX_NAMED else [*notes[:MAX_NAMED], f"and {len(notes) - MAX_NAMED} more of this kind"]

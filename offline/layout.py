"""The layout of a job whose traces lie in a folder: the user's word and the traces' process groups, reconciled as online."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import yaml

from eroica.schemas.errors import EroicaError, InvalidInput, TopologyError, UsageError
from eroica.schemas.files import read_bounded
from eroica.schemas.jobs import JobAnnouncement, ProcessGroup, RankInfo
from eroica.schemas.jobs import Layout as LayoutRecord
from eroica.schemas.ranks import MAX_RANK, RankArray, format_ranks
from eroica.schemas.summaries import Summary
from eroica.topology.jobview import JobView, merge_announcements
from eroica.topology.presets import FRAMEWORKS, build_layout, custom

MAX_FILE_BYTES = 64_000_000
UNNAMED_HOST = "unnamed host"
_HOW = "e.g. --topology 'megatron --world 64 --tp 2 --pp 4', or a YAML or JSON file of the same or of coordinates"
_FLAGS = frozenset({"use_data_before_expert"})
_WORDS = frozenset({"order", "placement"})
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Options = dict[str, int | str | bool]


@dataclass(frozen=True)
class GivenLayout:
    """What the user says of the layout: a framework with its sizes, or coordinates by axis, arrays of shape (world,)."""

    framework: str = ""
    world: int = 0
    """0: not said."""
    options: Options = field(default_factory=dict)
    coordinates: Mapping[str, RankArray] = field(default_factory=dict)
    where: str = "--topology"


def parse_layout(text: str) -> GivenLayout:
    """Read ``--topology``: a file's name, or a framework and the options of ``eroica topology``.

    :raises UsageError: neither, or an option without a value.
    :raises InvalidInput: a file that is too large, no YAML, or holds something else.
    """
    path = Path(text)
    if path.suffix.lower() in (".yaml", ".yml", ".json") or path.is_file():
        return _from_table(_read(path), str(path))
    try:
        words = [word for part in shlex.split(text) for word in part.split(",") if word]
    except ValueError as error:
        raise UsageError(f"{text!r} cannot be read ({error})", where="--topology", do=_HOW) from error
    table: dict[str, object] = {}
    pending = ""
    for word in words:
        name, equals, value = word.partition("=")
        if pending:
            table[pending], pending = word, ""
        elif word.startswith("--") and not equals:
            name = name[2:].replace("-", "_")
            if name in _FLAGS:
                table[name] = True
            else:
                pending = name
        elif equals:
            table[name.removeprefix("--").replace("-", "_")] = value
        elif "framework" not in table:
            table["framework"] = word
        else:
            raise UsageError(f"{word!r} is not understood", where="--topology", do=_HOW)
    if pending:
        raise UsageError(f"--{pending} has no value", where="--topology", do=_HOW)
    if not table:
        raise UsageError("nothing is given", where="--topology", do=_HOW)
    return _from_table(table, "--topology")


def view_of(summaries: Sequence[Summary], groups: Mapping[int, Sequence[ProcessGroup]], given: GivenLayout | None) -> JobView:
    """The job as its traces and the user tell it: hosts, classes, placement, world size.

    :param groups: process groups by rank, as the traces hold them.
    :raises TopologyError: the sources contradict each other.
    """
    world = max([s.who.world_size for s in summaries] + [s.who.rank + 1 for s in summaries])
    table: Mapping[str, RankArray] = {}
    layout = None
    if given is not None:
        table = given.coordinates
        said = len(next(iter(table.values()))) if table else given.world
        if said and said < max(s.who.rank for s in summaries) + 1:
            raise TopologyError(
                f"the layout places {said} ranks, but there is a trace of rank {max(s.who.rank for s in summaries)}",
                where=given.where,
                do="correct the world size, or the traces' ranks",
            )
        told = max((s.who.world_size for s in summaries), default=0)
        if said and told > said:
            raise TopologyError(
                f"the layout places {said} ranks, but the traces tell of a world of {told}",
                where=given.where,
                do="correct the layout",
            )
        world = said or world
        if not table:
            _check(given, world)
            sizes = {n: int(v) for n, v in given.options.items() if n not in _WORDS}
            layout = LayoutRecord(framework=given.framework, sizes=sizes, order=str(given.options.get("order", "")))
    if world > MAX_RANK + 1:
        raise InvalidInput(f"a world of {world} ranks is more than a job can have", where=f"rank {summaries[-1].who.rank}")
    by_host: dict[str, list[Summary]] = {}
    for summary in summaries:
        by_host.setdefault(summary.who.host or UNNAMED_HOST, []).append(summary)
    first = summaries[0].who
    return merge_announcements(
        JobAnnouncement(
            job=first.job,
            run_id=first.run_id,
            host=host,
            world_size=world,
            ranks=[
                RankInfo(
                    rank=s.who.rank,
                    device=s.who.device,
                    coords={axis: int(values[s.who.rank]) for axis, values in table.items()},
                )
                for s in members
            ],
            process_groups=[group for s in members for group in groups.get(s.who.rank, ())],
            layout=layout,
        )
        for host, members in sorted(by_host.items())
    )


def placed(summaries: Sequence[Summary], view: JobView) -> list[Summary]:
    """The summaries with the coordinates and classes that *view* gives them."""
    class_of = {rank: name for name, ranks in view.classes.items() for rank in ranks.tolist()}
    out = []
    for summary in summaries:
        rank = summary.who.rank
        coords = {a: int(v[rank]) for a, v in sorted(view.placement.axes.items()) if v[rank] >= 0}
        who = msgspec.structs.replace(summary.who, cls=class_of[rank], coords=coords, world_size=view.world_size)
        out.append(msgspec.structs.replace(summary, who=who))
    return out


def groups_of(named: Mapping[str, Mapping[str, Any]]) -> list[ProcessGroup]:
    """A trace's process groups as announcements carry them; those whose members it does not tell are left out."""
    return [
        ProcessGroup(name=name, kind=str(g["desc"]), backend=str(g["backend"]), ranks=format_ranks(sorted(set(g["ranks"]))))
        for name, g in sorted(named.items())
        if g["ranks"]
    ]


def _check(given: GivenLayout, world: int) -> None:
    try:
        build_layout(given.framework, world, given.options)
    except EroicaError as error:
        kind = UsageError if isinstance(error, UsageError) else TopologyError
        raise kind(error.what, where=f"{given.where}: {given.framework} of {world} ranks", do=error.do or _HOW) from error


def _read(path: Path) -> object:
    try:
        text = read_bounded(path, MAX_FILE_BYTES).decode("utf-8")
    except OSError as error:
        raise InvalidInput(f"the file cannot be read ({error.strerror})", where=str(path), do=_HOW) from error
    except UnicodeDecodeError as error:
        raise InvalidInput("the file is no text", where=str(path), do=_HOW) from error
    try:
        if path.suffix.lower() == ".json":
            return msgspec.json.decode(text)
        return yaml.load(text, Loader=_LOADER)  # noqa: S506  # the safe loader, in C where it was built
    except (msgspec.MsgspecError, yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidInput(f"the file cannot be read ({str(error)[:200]})", where=str(path), do=_HOW) from error


def _from_table(table: object, where: str) -> GivenLayout:
    if isinstance(table, dict) and isinstance(table.get("coordinates"), dict):
        table = table["coordinates"]
    if not isinstance(table, dict) or not table or not all(isinstance(name, str) for name in table):
        raise InvalidInput("the layout is no table of names", where=where, do=_HOW)
    if all(isinstance(values, list) for values in table.values()):
        return GivenLayout(coordinates=_coordinates(table, where), where=where)
    framework = table.get("framework")
    if not isinstance(framework, str) or framework not in FRAMEWORKS:
        raise UsageError(
            f"{framework!r} is not a known framework" if framework is not None else "the framework is missing",
            where=where,
            do=f"use one of {', '.join(FRAMEWORKS)}",
        )
    options: Options = {}
    for name, value in table.items():
        if name in _WORDS:
            options[name] = str(value)
        elif name in _FLAGS:
            options[name] = value in (True, "true", "True", 1, "1")
        elif name != "framework":
            options[name] = _size(name, value, where)
    world = int(options.pop("world", 0))
    return GivenLayout(framework, world, options, where=where)


def _size(name: str, value: object, where: str) -> int:
    if isinstance(value, str) and value.lstrip("-").isdigit() and len(value) < 10:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not -1 <= value <= MAX_RANK + 1:
        raise UsageError(f"{name} is {str(value)[:40]!r}, which is no size", where=where, do=_HOW)
    return value


def _coordinates(table: dict[str, Any], where: str) -> Mapping[str, RankArray]:
    try:
        arrays = {axis: np.array(values, dtype=np.int64) for axis, values in table.items()}
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput("a coordinate is no number", where=where, do=_HOW) from error
    try:
        custom(arrays)
    except TopologyError as error:
        raise TopologyError(error.what, where=where, do=error.do) from error
    return arrays

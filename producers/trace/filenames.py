"""What a trace's place in a folder tells: rank, place in the parallel layout, step, by the conventions of several frameworks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePath

from eroica.schemas.ranks import MAX_RANK

_NOT_GLOBAL = r"(?<![a-z])(?<!(?:tp|pp|dp|ep|cp)[_-])(?<!(?:local|group)[_-])(?<!node[_-])(?<!role[_-])"
"""``local_rank_1`` and ``tp_rank_1`` are no global ranks."""
_FILE_RULES = (
    # torchtitan, HTA, Megatron, torchtune, Composer, NeMo, vLLM: rank0, rank-0, rank_0, rank=0; Primus: rank[0]
    re.compile(_NOT_GLOBAL + r"(?:global[_-]?)?rank[_.=\[-]?(\d{1,8})(?!\d)", re.IGNORECASE),
    # param and Ray Train: worker0_step_12, worker_0_epoch_1; torchrun's log folders
    re.compile(r"(?<![a-z])(?:worker|trainer|proc|process)[_.=-]?(\d{1,8})(?!\d)", re.IGNORECASE),
    # accelerate: profile_0.json; a file a rank, named by it: 0.json
    re.compile(r"^(?:profile_)?(\d{1,6})\.(?:(?:pt\.)?trace\.)?(?:json(?:\.gz)?|sqlite)$", re.IGNORECASE),
)
"""First match wins. ``host_pid.time.pt.trace.json`` (torch's own handler, and what builds on it: Lightning, DeepSpeed's examples,
older Megatron) and dynolog's ``libkineto_trace_PID.json`` tell no rank."""
_PLACE = re.compile(r"(?<![a-z0-9])(tp|pp|dp|ep|cp)[-_]?(\d{1,6})(?![0-9])", re.IGNORECASE)
_STEP = re.compile(
    r"(?<![a-z])(?:(?:global[_-]?)?step|iteration|iter|epoch|batch|cycle|window)[_.=-]?\d+(?:_exit)?|"
    r"(?<=-)(?:extend|decode|prefill)(?=[.-])",
    re.IGNORECASE,
)


def rank_of_file(path: str | Path) -> int:
    """Rank by the file's name, else by its folder's (``rank_3/trace.json``); -1 if neither tells one."""
    return rank_of_place(PurePath(*Path(path).parts[-2:]))


def rank_of_place(relative: PurePath) -> int:
    """Rank by the names on the way to a file, the nearest first; -1 if none tells one."""
    return next((rank for part in reversed(relative.parts) if (rank := rank_of_text(part)) >= 0), -1)


def says_rank(text: str) -> int:
    """The rank of a name that calls it so (``rank3``); -1 for any other, a bare number too."""
    match = _FILE_RULES[0].search(text)
    return int(match.group(1)) if match is not None and int(match.group(1)) <= MAX_RANK else -1


def rank_of_text(text: str) -> int:
    """Rank by one name; -1 if it tells none."""
    for rule in _FILE_RULES:
        if (match := rule.search(text)) is not None and int(match.group(1)) <= MAX_RANK:
            return int(match.group(1))
    return -1


def place_of_file(path: str | Path) -> dict[str, int]:
    """Place in the layout by the file's name, as SGLang names its traces: ``ID-TP-0-DP-0-PP-0-EP-0.trace.json.gz``."""
    return {axis.lower(): int(number) for axis, number in _PLACE.findall(Path(path).name)}


def ranks_by_place(places: Sequence[dict[str, int]]) -> list[int]:
    """Ranks of one launch's files by their names' places; all -1 unless each has ``tp`` and no two get the same.

    SGLang: rank = PP · (TP size) + TP. Data-parallel attention lies inside TP, so DP counts only where TP and PP leave two
    files alike: then each DP replica has its own block.
    """
    none = [-1] * len(places)
    if not places or any("tp" not in place for place in places):
        return none
    tp, pp = (max(place.get(axis, 0) for place in places) + 1 for axis in ("tp", "pp"))
    inner = [place.get("pp", 0) * tp + place["tp"] for place in places]
    if len(set(inner)) == len(inner):
        return inner
    outer = [place.get("dp", 0) * tp * pp + rank for place, rank in zip(places, inner, strict=True)]
    return outer if len(set(outer)) == len(outer) else none


def step_of_place(relative: PurePath) -> str:
    """The part of a path that names a step, an epoch or a stage (``iteration_10``); empty without one."""
    return "/".join(match.group() for match in _STEP.finditer(relative.as_posix()))


def folder_of_place(relative: PurePath) -> str:
    """The folders above a file without those that name a rank."""
    return "/".join(part for part in relative.parts[:-1] if rank_of_text(part) < 0)

"""Pipelines of a job whose traces name none: by the sends and receives whose two ends they tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from eroica.schemas.jobs import ProcessGroup
from eroica.schemas.ranks import format_ranks, parse_ranks, say_ranks
from eroica.schemas.summaries import Summary
from eroica.topology.pipelines import pipelines
from eroica.topology.recognise import WORLD, kind_axes

PIPELINE = "pipeline_parallel"
"""Description of the groups that are made up here."""
MAX_SAID = 3


def pipeline_groups(
    summaries: Sequence[Summary], groups: Mapping[int, Sequence[ProcessGroup]]
) -> tuple[dict[int, list[ProcessGroup]], list[str]]:
    """*groups* by rank with those of the pipelines added, and what was assumed; unchanged where a group tells of pipelines, or
    where two that exchange by sends are in one group of peers.
    """
    known = {rank: list(of_rank) for rank, of_rank in groups.items()}
    told = {(axes, g.ranks) for of_rank in known.values() for g in of_rank if (axes := kind_axes(g.kind, g.name)) is not None}
    lines = pipelines(_sends(summaries))
    if not lines or any("pp" in axes for axes, _ in told):
        return known, []
    stage = {rank: (i, at) for i, line in enumerate(lines) for at, rank in enumerate(line)}
    for axes, ranks in told:
        members = [stage[rank] for rank in parse_ranks(ranks).tolist() if rank in stage]
        if axes != WORLD and len({line for line, _ in members}) < len(members):
            return known, []
    for line in lines:
        first = next(s.who.rank for s in summaries if s.who.rank in line)
        known.setdefault(first, []).append(ProcessGroup(name="", kind=PIPELINE, ranks=format_ranks(line)))
    said = " and ".join(say_ranks(format_ranks(line)) for line in lines[:MAX_SAID]) + (" …" if len(lines) > MAX_SAID else "")
    return known, [f"no process group tells the pipeline: {said} are taken for its stages, by who sends to whom"]


def _sends(summaries: Sequence[Summary]) -> Iterator[tuple[int, int]]:
    """Sender and receiver of all transfers that the traces tell both ends of."""
    for summary in summaries:
        own = summary.who.rank
        for communicator in summary.communicators:
            ops = {slot.op for slot in communicator.slots}
            if communicator.size != 2 or not communicator.ranks or not ops <= {"send", "recv"}:
                continue
            ends = parse_ranks(communicator.ranks).tolist()
            if own not in ends or len(ends) != 2:
                continue
            other = ends[0] if ends[1] == own else ends[1]
            yield from ((own, other) if op == "send" else (other, own) for op in sorted(ops))

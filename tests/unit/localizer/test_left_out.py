"""A worker whose summary cannot be held against the others' is missing, with the reason; the others are judged without it."""

from __future__ import annotations

import re

import msgspec
import pytest
from scenes import Scene, steady

from eroica.localizer.core import LocalizerCore
from eroica.schemas.groups import ExecutionColumns, GroupChunk
from eroica.schemas.outputs import InputRef
from eroica.schemas.settings import LocalizeSettings
from eroica.schemas.verdicts import Verdict

pytestmark = pytest.mark.unit


def judge(chunks: list[GroupChunk]) -> Verdict:
    core = LocalizerCore(LocalizeSettings())
    (output,) = [o for at, chunk in enumerate(chunks) for o in core.feed(chunk, InputRef("groups", 0, at))]
    assert isinstance(output.message, Verdict)
    return output.message


def without_collectives(chunks: list[GroupChunk], rank: int, keep: int = 0) -> list[GroupChunk]:
    """As of a trace that lacks the device's events: all but the first *keep* executions of *rank* are gone."""
    out = []
    for chunk in chunks:
        e = chunk.executions
        of_rank = [i for i, row in enumerate(e.row) if chunk.workers[row].rank == rank]
        gone = set(of_rank[keep:])
        stay = [i for i in range(len(e.row)) if i not in gone]
        columns = {
            name: [value[i] for i in stay] if isinstance(value, list) and len(value) == len(e.row) else value
            for name, value in msgspec.structs.asdict(e).items()
        }
        out.append(msgspec.structs.replace(chunk, executions=ExecutionColumns(**columns)))
    return out


def renumbered(chunks: list[GroupChunk], ranks: set[int], by: int) -> list[GroupChunk]:
    """*ranks* began so many steps later than the others."""
    out = []
    for chunk in chunks:
        later = {row for row, worker in enumerate(chunk.workers) if worker.rank in ranks}
        tables = {
            name: msgspec.structs.replace(
                table, step=[step + by * (row in later) for row, step in zip(table.row, table.step, strict=True)]
            )
            for name, table in (("steps", chunk.steps), ("executions", chunk.executions))
        }
        out.append(msgspec.structs.replace(chunk, **tables))
    return out


@pytest.mark.parametrize("slow", [{}, {5: 1.5}])
@pytest.mark.parametrize("keep", [0, 1])
def test_a_rank_without_collectives_is_not_taken_for_one_that_never_waits(slow: dict[int, float], keep: int) -> None:
    chunks = without_collectives(Scene(8, steady(50_000.0, slow)).chunks(), rank=2, keep=keep)
    verdict = judge(chunks)
    assert [cause.suspects.ranks for cause in verdict.causes] == [str(rank) for rank in slow]
    assert verdict.coverage.missing == "2"
    assert any(note.startswith("rank 2: left out: its trace tells of") for note in verdict.coverage.notes)


def test_a_rank_that_profiled_other_steps_does_not_stand_in_the_way_of_the_others() -> None:
    verdict = judge(renumbered(Scene(8, steady(50_000.0, {5: 1.5})).chunks(), {2}, by=6))
    assert [cause.suspects.ranks for cause in verdict.causes] == ["5"]
    assert verdict.coverage.missing == "2"
    assert any(
        re.match(r"rank 2: left out: it profiled steps \d+-\d+, the others profiled steps \d+-\d+$", n)
        for n in verdict.coverage.notes
    )


def test_where_half_profiled_other_steps_nobody_knows_which_are_the_right_ones() -> None:
    verdict = judge(renumbered(Scene(8, steady(50_000.0, {5: 1.5})).chunks(), {0, 1, 2, 3}, by=6))
    assert verdict.causes == []
    assert "no steps were profiled by all workers" in verdict.headline

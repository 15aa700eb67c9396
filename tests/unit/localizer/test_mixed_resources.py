"""A function is the same on every rank, whatever was sampled of it there: hosts without a GPU's clock are no outliers."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import pytest
from scenes import Scene, steady

from eroica.localizer.build import build_frame
from eroica.localizer.columns import MIXED
from eroica.localizer.frame import Frame
from eroica.localizer.rules.paper import judge_paper
from eroica.schemas.groups import FunctionName, GroupChunk
from eroica.schemas.settings import LocalizeSettings

pytestmark = pytest.mark.unit


def sampled(chunk: GroupChunk, rows: Collection[int], mu: float = 0.4) -> GroupChunk:
    """The same chunk, but the clock was sampled on these rows, which the wire tells as functions of their own."""
    names: dict[FunctionName, int] = {}
    told, function, level = chunk.patterns, [], []
    for row, number, m in zip(chunk.patterns.row, chunk.patterns.function, chunk.patterns.mu, strict=True):
        resource = "sm_clock" if row in rows else "critical_share"
        name = msgspec.structs.replace(chunk.functions[number], resource=resource)
        function.append(names.setdefault(name, len(names)))
        level.append(mu if row in rows else m)
    return msgspec.structs.replace(
        chunk, functions=list(names), patterns=msgspec.structs.replace(told, function=function, mu=level)
    )


def frame_of(slow: dict[int, float], rows: Collection[int]) -> Frame:
    return build_frame([sampled(chunk, rows) for chunk in Scene(8, steady(50_000.0, slow)).chunks()])


def accused(frame: Frame) -> list[int]:
    return [rank for finding in judge_paper(frame, LocalizeSettings()).findings for rank in finding.ranks.tolist()]


@pytest.mark.parametrize("rows", [(3,), (0, 1), (0, 1, 2, 4, 5, 6, 7)])
@pytest.mark.parametrize("slow", [{}, {5: 2.0}])
def test_who_samples_more_is_no_outlier(slow: dict[int, float], rows: tuple[int, ...]) -> None:
    plain = frame_of(slow, ())
    mixed = frame_of(slow, rows)
    assert [(f.name, f.category, f.stack) for f in mixed.functions] == [(f.name, f.category, f.stack) for f in plain.functions]
    assert {f.resource for f in mixed.functions} == {MIXED}
    assert (mixed.pattern_function == plain.pattern_function).all()
    assert accused(plain) == accused(mixed) == list(slow)


def test_where_all_sample_alike_the_level_still_tells() -> None:
    chunks = [sampled(chunk, range(8)) for chunk in Scene(8, steady(50_000.0, {})).chunks()]
    mu = [0.05 if row == 3 else 1.0 for row in chunks[0].patterns.row]
    chunks[0] = msgspec.structs.replace(chunks[0], patterns=msgspec.structs.replace(chunks[0].patterns, mu=mu))
    frame = build_frame(chunks)
    assert {f.resource for f in frame.functions} == {"sm_clock"}
    assert accused(frame) == [3]

"""The bench of the localizer's speed judges what real messages would give, and finds the rank that is slow."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eroica.localizer.actions import Advice
from eroica.localizer.packed import PackedChunk, pack
from eroica.schemas.codec import decode_as, encode
from eroica.schemas.groups import GroupChunk

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))
from localise import eroica_rule, paper_rule
from localise_job import FUNCTIONS, job, message

pytestmark = pytest.mark.unit


def plain(value: Any) -> Any:
    """Arrays as lists, dataclasses as mappings."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return {name: plain(one) for name, one in value.items()} if isinstance(value, dict) else value


@pytest.fixture(scope="module")
def parts() -> list[PackedChunk]:
    return job(1_280)


def test_columns_are_those_of_the_messages(parts: list[PackedChunk]) -> None:
    for part in parts[:: len(parts) - 1]:
        assert plain(pack(decode_as(GroupChunk, encode(message(part))))) == plain(part)


def test_the_slow_rank_is_named(parts: list[PackedChunk]) -> None:
    verdict = json.loads(eroica_rule(parts, Advice()))
    assert [(cause["class"], cause["suspects"]["ranks"]) for cause in verdict["causes"]] == [("worker", str(1_280 // 3))]


def test_the_published_rule_is_that_of_the_rule_set(parts: list[PackedChunk]) -> None:
    from eroica.localizer.build import build_frame
    from eroica.localizer.rules.paper import paper_scores
    from eroica.schemas.settings import LocalizeSettings

    rows, functions = paper_rule(parts, FUNCTIONS)
    scores = paper_scores(build_frame(parts), LocalizeSettings())
    assert np.array_equal(np.stack((rows, functions)), np.stack(np.nonzero(scores.abnormal)))

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenes import Scene, steady

from eroica.localizer.core import LOST_CLASS_US, LocalizerCore
from eroica.localizer.fit import fit
from eroica.schemas.codec import decode_as, encode
from eroica.schemas.errors import SchemaError
from eroica.schemas.groups import GroupChunk
from eroica.schemas.outputs import InputRef
from eroica.schemas.settings import LocalizeSettings
from eroica.schemas.topics import MAX_VERDICT_BYTES
from eroica.schemas.verdicts import Evidence, Verdict

pytestmark = pytest.mark.unit

SETTINGS = LocalizeSettings()
CLASSES = {"pp0": range(8), "pp1": range(8, 16)}
CHUNKS = Scene(16, steady(50_000.0, {2: 1.7}, noise=0.05), classes=CLASSES).chunks()


def split(chunk: GroupChunk) -> list[GroupChunk]:
    """The class in two chunks: half of the workers each."""
    parts = []
    for number, keep in enumerate((range(4), range(4, 8))):
        fields = {}
        for name in ("patterns", "steps", "executions"):
            table = getattr(chunk, name)
            inside = [i for i, row in enumerate(table.row) if row in keep]
            fields[name] = msgspec.structs.replace(
                table,
                **{
                    column: [values[i] - (keep.start if column == "row" else 0) for i in inside]
                    for column in table.__struct_fields__
                    if isinstance(values := getattr(table, column), list)
                },
            )
        parts.append(msgspec.structs.replace(chunk, chunk=number, chunks=2, workers=[chunk.workers[i] for i in keep], **fields))
    return parts


def run(chunks: list[GroupChunk], core: LocalizerCore | None = None) -> list[bytes]:
    used = core or LocalizerCore(SETTINGS)
    return [encode(o.message) for at, c in enumerate(chunks) for o in used.feed(c, InputRef("groups", 0, at))]


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.booleans())
def test_order_and_repetition_of_chunks_change_no_byte(seed: int, halves: bool) -> None:
    chunks = [part for chunk in CHUNKS for part in (split(chunk) if halves else [chunk])]
    shuffled = [*chunks, *chunks]
    random.Random(seed).shuffle(shuffled)
    assert run(shuffled) == run(chunks)
    assert len(run(shuffled)) == 1


def test_halves_give_the_verdict_of_the_whole() -> None:
    assert run([part for chunk in CHUNKS for part in split(chunk)]) == run(CHUNKS)


def test_nothing_is_said_before_every_class_is_there_and_nothing_twice() -> None:
    core = LocalizerCore(SETTINGS)
    assert core.feed(CHUNKS[0], InputRef("groups", 3, 7)) == []
    assert (core.low_water(3), core.low_water(4)) == (7, None)
    assert len(core.feed(CHUNKS[1], InputRef("groups", 3, 9))) == 1
    assert core.low_water(3) is None
    assert core.feed(CHUNKS[0], InputRef("groups", 3, 12)) == []
    assert run(CHUNKS, LocalizerCore(SETTINGS, ("req-1",))) == []


def test_what_cannot_be_judged_holds_nothing_up() -> None:
    core = LocalizerCore(SETTINGS)
    broken = [
        msgspec.structs.replace(c, expected="9-1", request=msgspec.structs.replace(c.request, request="req-bad")) for c in CHUNKS
    ]
    assert core.feed(broken[0], InputRef("groups", 3, 7)) == []
    with pytest.raises(SchemaError):
        core.feed(broken[1], InputRef("groups", 3, 8))
    assert core.low_water(3) is None
    assert len(run(CHUNKS, core)) == 1


def test_pauses_of_different_lengths_are_refused() -> None:
    pauses = msgspec.structs.replace(CHUNKS[0].pauses, row=[0], what=["gc"], total_us=[1.0], max_us=[1.0], count=[])
    with pytest.raises(SchemaError, match="pauses"):
        LocalizerCore(SETTINGS).feed(msgspec.structs.replace(CHUNKS[0], pauses=pauses), InputRef("groups", 0, 0))


def test_a_class_that_never_comes_is_given_up_once_the_partition_is_hours_further() -> None:
    core = LocalizerCore(SETTINGS)
    core.feed(CHUNKS[0], InputRef("groups", 3, 7))
    at = {name: 2 * LOST_CLASS_US * number for number, name in enumerate(("soon", "other", "later"))}
    later = {
        name: Scene(16, steady(50_000.0, {}), classes=CLASSES, request=name, issued_at_us=1_000_000 + time).chunks()[0]
        for name, time in at.items()
    }
    assert core.feed(later["soon"], InputRef("groups", 3, 8)) == []
    assert core.feed(later["other"], InputRef("groups", 4, 9)) == []  # another partition's time is not this one's
    outputs = core.feed(later["later"], InputRef("groups", 3, 10))
    found = {output.message.request.id: output.message for output in outputs if isinstance(output.message, Verdict)}
    assert list(found) == ["req-1", "soon"]
    coverage = found["req-1"].coverage
    assert (coverage.expected, coverage.received, coverage.missing) == (16, 8, "8-15")
    assert any("class pp1" in note and "never closed" in note for note in coverage.notes)
    assert core.low_water(3) == 10


def test_a_request_of_another_job_whose_clock_is_far_ahead_gives_nobody_up() -> None:
    core = LocalizerCore(SETTINGS)
    assert core.feed(CHUNKS[0], InputRef("groups", 3, 7)) == []
    [stranger] = Scene(16, steady(50_000.0, {}), request="far", issued_at_us=2**50).chunks()
    stranger = msgspec.structs.replace(stranger, request=msgspec.structs.replace(stranger.request, job="other"), job="other")
    outputs = core.feed(stranger, InputRef("groups", 3, 8))
    assert [o.message.request.id for o in outputs if isinstance(o.message, Verdict)] == ["far"]
    assert core.low_water(3) == 7
    verdict = decode_as(Verdict, run(CHUNKS[1:], core)[0])
    assert (verdict.request.id, verdict.coverage.missing) == ("req-1", "")


def test_a_partition_that_goes_away_takes_its_open_requests_with_it() -> None:
    core = LocalizerCore(SETTINGS)
    core.feed(CHUNKS[0], InputRef("groups", 3, 7))
    core.forget(3)
    assert core.low_water(3) is None
    assert core.feed(CHUNKS[1], InputRef("groups", 3, 8)) == []


@settings(max_examples=40)
@given(st.permutations(range(16)))
def test_renumbering_the_ranks_changes_the_names_only(order: list[int]) -> None:
    base = steady(50_000.0, {2: 1.7}, noise=0.05)
    scene = Scene(16, lambda rank, step, at: base(order[rank], step, at), hosts=lambda rank: f"host-{order[rank] // 8}")
    [raw] = run(scene.chunks())
    verdict = decode_as(Verdict, raw)
    assert [c.suspects.ranks for c in verdict.causes] == [str(order.index(2))]


@pytest.mark.parametrize("rules", ["paper", "guide"])
def test_the_published_rules_run_on_the_same_frames(rules: str) -> None:
    [raw] = run(CHUNKS, LocalizerCore(LocalizeSettings(rules=rules)))  # type: ignore[arg-type]
    verdict = decode_as(Verdict, raw)
    assert verdict.provenance.rules == rules
    named = {rank for cause in verdict.causes for rank in cause.suspects.ranks.split(",")}
    assert "2" in named


@pytest.mark.parametrize(
    "damage",
    [
        lambda c: msgspec.structs.replace(c, chunk=1),
        lambda c: msgspec.structs.replace(c, cls="elsewhere"),
        lambda c: msgspec.structs.replace(c, steps=msgspec.structs.replace(c.steps, row=[*c.steps.row[:-1], 99])),
        lambda c: msgspec.structs.replace(c, steps=msgspec.structs.replace(c.steps, step=c.steps.step[:-1])),
        lambda c: msgspec.structs.replace(
            c, executions=msgspec.structs.replace(c.executions, slot=[-1] * len(c.executions.slot))
        ),
        lambda c: msgspec.structs.replace(c, functions=[]),
        lambda c: msgspec.structs.replace(c, communicators=[]),
    ],
)
def test_a_chunk_that_contradicts_itself_is_refused(damage: object) -> None:
    with pytest.raises(SchemaError):
        LocalizerCore(SETTINGS).feed(damage(CHUNKS[0]), InputRef("groups", 0, 5))  # type: ignore[operator]


def test_a_verdict_stays_small_and_says_what_was_cut() -> None:
    verdict = decode_as(Verdict, run(CHUNKS)[0])
    cause = verdict.causes[0]
    evidence = [
        Evidence(
            kind="function", metric="m" * 50, subject=f"rank {i}", value=1.0, unit="ms", expected=0.5, score=2.0, rule="r",
            compared_with="x" * 50,
        )
        for i in range(5_000)
    ]  # fmt: skip
    big = msgspec.structs.replace(verdict, causes=[msgspec.structs.replace(cause, evidence=evidence)])
    small = fit(big)
    assert len(encode(small)) <= MAX_VERDICT_BYTES
    assert 0 < len(small.causes[0].evidence) < 5_000
    assert "evidence was cut from 5000" in small.coverage.notes[0]


def test_100_000_ranks_fit_into_a_verdict() -> None:
    verdict = decode_as(Verdict, run(CHUNKS)[0])
    odd = ",".join(str(r) for r in np.arange(0, 100_000, 2))
    huge = msgspec.structs.replace(verdict, provenance=msgspec.structs.replace(verdict.provenance, inputs={"summaries/0": odd}))
    assert len(encode(fit(huge))) <= MAX_VERDICT_BYTES

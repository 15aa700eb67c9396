"""Collecting a class: when it is emitted, with what coverage, and that nothing else changes it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams_kit import SECOND, T0

from eroica.schemas.codec import decode_as, encode
from eroica.schemas.control import ProfileRequest
from eroica.schemas.errors import SchemaError
from eroica.schemas.groups import GroupChunk
from eroica.schemas.outputs import InputRef, Output
from eroica.schemas.settings import GroupSettings
from eroica.schemas.summaries import (
    CloseClass,
    Communicator,
    Expectation,
    FunctionPattern,
    Identity,
    Metric,
    Pause,
    ReceiveWaits,
    Slot,
    StackEvidence,
    StepRecord,
    Summary,
    SummaryError,
    SummaryTopicMessage,
)
from eroica.streams.collect import GroupCore
from eroica.streams.columns import summary_columns
from eroica.streams.opener import open_classes

pytestmark = pytest.mark.unit

REQUEST = ProfileRequest(
    request="req-1", job="j", run_id="r", reason="manual", start_step=10, steps=2, world_size=4, classes={"all": "0-3"},
    issued_at_us=T0, deadline_ms=60_000,
)  # fmt: skip


def who(rank: int, request: str = "req-1") -> Identity:
    return Identity(
        job="j", run_id="r", request=request, cls="all", rank=rank, world_size=4, host=f"h{rank // 2}", coords={"dp": rank}
    )


def summary(rank: int, *, request: str = "req-1", late: int = 0, functions: int = 2) -> Summary:
    return Summary(
        who=who(rank, request),
        first_step=10,
        last_step=11,
        window_us=2_000.0,
        late_by_steps=late,
        ended_at_us=T0 + 5 * SECOND + rank,
        steps=[
            StepRecord(step=10, start_us=0.0, duration_us=1_000.0, phases_us={"data": 10.0 + rank}),
            StepRecord(step=11, start_us=1_000.0, duration_us=1_000.0, phases_us={"forward": 5.0}),
        ],
        functions=[FunctionPattern(name=f"f{i}", category="python", stack=0, beta=0.1 * rank) for i in range(functions)],
        stacks=["main;loop"],
        communicators=[
            Communicator(
                name="dp",
                ranks="0-3",
                size=4,
                slots=[
                    Slot(
                        op="all_reduce",
                        index=0,
                        step=[10, 10, 11],
                        start_us=[1.0, 2.0, 3.0],
                        duration_us=[4.0, 5.0, 6.0],
                        exposed_us=[4.0, 0.0, 6.0],
                    ),
                    Slot(op="broadcast", index=1, step=[10], start_us=[1.0], duration_us=[4.0], seq=[77]),
                ],
            )
        ],
        pauses=[Pause(what="gc", count=1, total_us=3.0, max_us=3.0)],
        metrics=[
            Metric(name="cpu_steal", unit="share", mean=0.5),
            Metric(name="sm_clock", unit="MHz", mean=1_400.0, device="gpu0"),
        ],
    )


OPEN = Expectation(cls="all", ranks="0-3", classes=["all"], request=REQUEST)
CLOSE = CloseClass(job="j", request="req-1", cls="all", closed_by="deadline")


def feed(core: GroupCore, *messages: SummaryTopicMessage, start: int = 0) -> list[GroupChunk]:
    chunks = []
    for i, message in enumerate(messages):
        for output in core.feed(message, InputRef("summaries", 3, start + i)):
            assert isinstance(output.message, GroupChunk) and output.topic == "groups" and output.key == "j/req-1"
            chunks.append(output.message)
    return chunks


def test_a_complete_class_is_one_group_in_rank_order() -> None:
    core = GroupCore(GroupSettings())
    assert feed(core, OPEN, summary(2), summary(0), summary(3, late=1)) == []
    [chunk] = feed(core, summary(1), start=4)
    assert (chunk.closed_by, chunk.expected, chunk.received, chunk.late, chunk.chunk, chunk.chunks) == (
        "complete",
        "0-3",
        "0-3",
        "3",
        0,
        1,
    )
    assert [(w.rank, w.ended_at_us - T0) for w in chunk.workers] == [(r, 5 * SECOND + r) for r in range(4)]
    assert chunk.inputs == {"summaries/3": "0-4"}
    assert chunk.patterns.beta[::2] == [0.0, 0.1, 0.2, 0.1 * 3]
    assert [(f.name, f.stack) for f in chunk.functions] == [("f0", "main;loop"), ("f1", "main;loop")]
    assert chunk.steps.phases_us == {"data": [10.0, 0.0, 11.0, 0.0, 12.0, 0.0, 13.0, 0.0], "forward": [0.0, 5.0] * 4}
    assert [(s.op, s.communicator) for s in chunk.slots] == [("all_reduce", 0), ("broadcast", 0)]
    assert chunk.executions.occurrence[:4] == [0, 1, 0, 77]
    assert chunk.executions.exposed_us[:4] == [4.0, 0.0, 6.0, 4.0]
    assert chunk.metrics.name[:2] == ["cpu_steal[share]", "gpu0:sm_clock[MHz]"]
    assert decode_as(GroupChunk, encode(chunk)) == chunk


def test_summaries_may_come_before_the_expectation() -> None:
    core = GroupCore(GroupSettings())
    assert feed(core, *[summary(r) for r in range(4)], start=1) == []
    [chunk] = feed(core, OPEN, start=9)
    assert chunk.received == "0-3" and chunk.inputs == {"summaries/3": "1-4,9"}


def test_a_close_message_ends_an_incomplete_class_with_its_coverage() -> None:
    core = GroupCore(GroupSettings())
    broken = SummaryError(who=who(1), error="no trace", ended_at_us=T0)
    [chunk] = feed(core, OPEN, summary(0), broken, CLOSE)
    assert (chunk.closed_by, chunk.received, chunk.errors) == ("deadline", "0", {"1": "no trace"})


def test_a_class_that_got_nothing_still_speaks() -> None:
    [chunk] = feed(GroupCore(GroupSettings()), OPEN, CLOSE)
    assert (chunk.received, chunk.expected, chunk.workers, chunk.chunks) == ("", "0-3", [], 1)


def test_errors_complete_a_class_as_well() -> None:
    failed = [SummaryError(who=who(r), error="x" * 1_000, ended_at_us=T0) for r in range(4)]
    [chunk] = feed(GroupCore(GroupSettings()), OPEN, *failed)
    assert chunk.closed_by == "complete" and chunk.received == "" and len(chunk.errors["0"]) == 300


def test_stacks_are_rows() -> None:
    evidence = [
        StackEvidence(who=who(r), ended_at_us=T0, last_step=5, idle_us=9, last_event="loader_enter", threads=[f"t{r}"])
        for r in (1, 0, 3, 2)
    ]
    [chunk] = feed(GroupCore(GroupSettings()), OPEN, *evidence)
    assert [(s.rank, s.threads) for s in chunk.stacks] == [(0, ["t0"]), (1, ["t1"]), (2, ["t2"]), (3, ["t3"])]
    assert chunk.received == "0-3"


def test_what_comes_after_the_close_changes_nothing() -> None:
    core = GroupCore(GroupSettings())
    feed(core, OPEN, summary(0), CLOSE)
    assert feed(core, summary(1), OPEN, CLOSE, summary(2), summary(3), start=3) == []
    assert core.counters.late == 3
    assert core.waiting_jobs() == []


def test_a_rank_that_nobody_expects_is_left_out() -> None:
    core = GroupCore(GroupSettings())
    [chunk] = feed(core, summary(9), OPEN, summary(8), *[summary(r) for r in range(4)])
    assert chunk.received == "0-3" and core.counters.foreign == 2


@given(st.permutations([OPEN, *[summary(r) for r in range(4)]]), st.lists(st.integers(0, 4), max_size=5))
@settings(max_examples=50)
def test_order_and_repetition_change_only_the_offsets(order: list[SummaryTopicMessage], again: list[int]) -> None:
    plain = feed(GroupCore(GroupSettings()), OPEN, *[summary(r) for r in range(4)])
    doubled = [m for i, m in enumerate(order) for m in ([m, m] if i in again else [m])]
    mixed = feed(GroupCore(GroupSettings()), *doubled)
    assert [_no_inputs(c) for c in mixed] == [_no_inputs(c) for c in plain]


def _no_inputs(chunk: GroupChunk) -> bytes:
    raw = encode(chunk)
    return raw[: raw.index(b'"inputs"')] + raw[raw.index(b'"workers"') :]


def closes(outputs: list[Output]) -> list[str]:
    return [o.message.closed_by for o in outputs if isinstance(o.message, CloseClass)]


def test_silence_is_written_down_and_only_then_closes() -> None:
    core = GroupCore(GroupSettings(idle_ms=20_000))
    feed(core, OPEN, summary(0))
    last = T0 + 5 * SECOND
    assert closes(core.advance("j", last + 19 * SECOND)) == []
    outputs = core.advance("j", last + 20 * SECOND)
    assert closes(outputs) == ["idle"] and outputs[0].key == "j/req-1/all" and outputs[0].topic == "summaries"
    assert closes(core.advance("j", last + 21 * SECOND)) == [], "it is said once"
    assert core.waiting_jobs() == ["j"], "open until the message itself comes back"
    [chunk] = feed(core, outputs[0].message, start=2)  # type: ignore[arg-type]
    assert chunk.closed_by == "idle" and chunk.received == "0"


def test_a_class_without_any_summary_waits_for_the_whole_deadline() -> None:
    core = GroupCore(GroupSettings(idle_ms=20_000))
    feed(core, OPEN)
    assert closes(core.advance("j", T0 + 59 * SECOND)) == []
    assert closes(core.advance("j", T0 + 60 * SECOND)) == ["deadline"]


def test_trickling_summaries_end_at_the_deadline() -> None:
    core = GroupCore(GroupSettings(idle_ms=200_000))
    feed(core, OPEN, summary(0))
    assert closes(core.advance("j", T0 + 64 * SECOND)) == []
    assert closes(core.advance("j", T0 + 65 * SECOND)) == ["deadline"]


def test_a_host_with_a_wrong_clock_closes_nobody() -> None:
    core = GroupCore(GroupSettings(idle_ms=20_000))
    feed(core, OPEN, summary(0))
    strange = SummaryError(who=who(1), error="", ended_at_us=T0 + 3_600 * SECOND)
    feed(core, strange, start=2)
    assert closes(core.advance("j", T0 + 3_601 * SECOND)) == []


def test_large_classes_come_in_chunks_of_bounded_size_and_equal_coverage() -> None:
    core = GroupCore(GroupSettings(max_chunk_bytes=20_000))
    chunks = feed(core, OPEN, *[summary(r, functions=60, late=r % 2) for r in range(4)])
    assert (
        len(chunks) > 1 and [c.chunk for c in chunks] == list(range(len(chunks))) and {c.chunks for c in chunks} == {len(chunks)}
    )
    assert [w.rank for c in chunks for w in c.workers] == [0, 1, 2, 3]
    assert {(c.received, c.late, str(c.inputs)) for c in chunks} == {("0-3", "1,3", "{'summaries/3': '0-4'}")}
    assert all(len(encode(c)) <= 20_000 or len(c.workers) == 1 for c in chunks)


def test_an_oversized_summary_is_an_error_and_not_the_end() -> None:
    [chunk] = feed(GroupCore(GroupSettings()), OPEN, summary(0, functions=5_000), *[summary(r) for r in range(1, 4)])
    assert chunk.received == "1-3" and "over the limit" in chunk.errors["0"]


def test_the_oldest_class_makes_room() -> None:
    core = GroupCore(GroupSettings(max_open=2))
    feed(core, OPEN, summary(0))
    for name in ("req-2", "req-3"):
        outputs = core.feed(summary(0, request=name), InputRef("summaries", 3, 9))
    [chunk] = [o.message for o in outputs if isinstance(o.message, GroupChunk)]
    assert chunk.closed_by == "deadline" and chunk.received == "0"


@pytest.mark.parametrize("ranks", ["x", "3-1", "0-999999999"])
def test_an_expectation_of_nonsense_is_refused(ranks: str) -> None:
    core = GroupCore(GroupSettings())
    with pytest.raises(SchemaError):
        feed(core, Expectation(cls="all", ranks=ranks, classes=["all"], request=REQUEST))
    assert core.waiting_jobs() == []


def test_a_request_opens_each_of_its_classes_where_their_summaries_go() -> None:
    request = ProfileRequest(
        request="q", job="a/b", run_id="r", reason="manual", steps=3, world_size=4, classes={"pp1": "2-3", "pp0": "0-1"},
        issued_at_us=T0,
        deadline_ms=1,
    )  # fmt: skip
    outputs = open_classes(request)
    assert [o.key for o in outputs] == ["a_b/q/pp0", "a_b/q/pp1"]
    assert [(o.message.ranks, o.message.classes) for o in outputs if isinstance(o.message, Expectation)] == [
        ("0-1", ["pp0", "pp1"]),
        ("2-3", ["pp0", "pp1"]),
    ]


@pytest.mark.parametrize(
    "odd",
    [
        ReceiveWaits(group="ep", sources="no ranks", count=1, total_us=[1.0], max_us=[1.0]),
        ReceiveWaits(group="ep", sources="0-3", count=1, total_us=[1.0], max_us=[1.0]),
        ReceiveWaits(group="ep", sources="0-1", count=1, total_us=[1.0, 2.0], max_us=[1.0]),
        ReceiveWaits(group="ep", sources="", count=1),
        ReceiveWaits(group="ep", sources="0-99999", count=1),
    ],
)
def test_receive_waits_become_columns_and_odd_ones_are_left_out(odd: ReceiveWaits) -> None:
    fine = ReceiveWaits(group="ep", sources="0-3", count=2, total_us=[0.0, 1.0, 2.0, 3.0], max_us=[0.0, 1.0, 1.0, 2.0])
    rows = [msgspec.structs.replace(summary(rank), receive_waits=[odd, fine] if rank == 2 else [fine]) for rank in range(4)]
    chunk = summary_columns(GroupChunk(
        job="j", run_id="r", request=REQUEST, cls="all", classes=["all"], chunk=0, chunks=1, closed_by="complete",
        expected="0-3", received="0-3",
    ), rows)  # fmt: skip
    assert [(g.name, g.sources) for g in chunk.receive_groups] == [("ep", "0-3")]
    w = chunk.receive_waits
    assert (w.row, w.group, w.count) == ([0, 1, 2, 3], [0] * 4, [2] * 4)
    assert (w.total_us, w.max_us) == ([fine.total_us] * 4, [fine.max_us] * 4)
    assert len(chunk.workers) == 4

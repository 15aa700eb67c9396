from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eroica.schemas.errors import TopologyError
from eroica.topology.stepgraph import GraphBuilder, Op
from eroica.topology.whatif import WhatIf

pytestmark = pytest.mark.unit


def test_work_in_a_chain_adds_up() -> None:
    b = GraphBuilder(1)
    first = b.add(Op(0, "forward-compute"))
    b.add(Op(0, "backward-compute"), after=[first])
    timing = b.build().evaluate(np.array([[[2.0]], [[3.0]]]))
    assert timing.start[:, 0, 0].tolist() == [0.0, 2.0]
    assert timing.step_times().tolist() == [5.0]


def test_members_of_a_meeting_end_after_the_last_has_come() -> None:
    b = GraphBuilder(2, {"dp": np.zeros(2, dtype=np.int64)})
    work = b.add(Op(0, "forward-compute"))
    reduce = b.add(Op(0, "grads-all-reduce"), after=[work])
    b.meet([reduce], across="dp")
    timing = b.build().evaluate(np.array([[[1.0], [4.0]], [[0.5], [0.5]]]))
    assert timing.start[reduce, :, 0].tolist() == [1.0, 4.0]
    assert timing.end[reduce, :, 0].tolist() == [4.5, 4.5]


def test_lanes_of_another_label_do_not_meet() -> None:
    b = GraphBuilder(4, {"ep": np.array([0, 1, 0, 1])})
    work = b.add(Op(0, "forward-compute"))
    exchange = b.add(Op(0, "all-to-all"), after=[work])
    b.meet([exchange], across="ep")
    timing = b.build().evaluate(np.array([[[1.0], [2.0], [3.0], [4.0]], [[1.0]] * 4]))
    assert timing.end[exchange, :, 0].tolist() == [4.0, 5.0, 4.0, 5.0]


def test_steps_are_independent() -> None:
    b = GraphBuilder(1)
    b.add(Op(0, "forward-compute"))
    assert b.build().evaluate(np.array([[[1.0, 7.0, 2.0]]])).step_times().tolist() == [1.0, 7.0, 2.0]


def test_a_circle_is_called_a_deadlock() -> None:
    b = GraphBuilder(1)
    one = b.add(Op(0, "forward-compute"))
    two = b.add(Op(1, "forward-compute"), after=[one])
    b.wait(one, [two])
    with pytest.raises(TopologyError, match=r"a deadlock: forward-compute 0 of stage 0"):
        b.build()


def test_two_meetings_entered_in_opposite_order_are_a_deadlock() -> None:
    b = GraphBuilder(1)
    a0, b1 = b.add(Op(0, "send")), b.add(Op(1, "send"))
    b0, a1 = b.add(Op(0, "recv"), after=[a0]), b.add(Op(1, "recv"), after=[b1])
    b.meet([a0, a1])
    b.meet([b0, b1])
    with pytest.raises(TopologyError, match="a deadlock"):
        b.build()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda b: b.meet([0], across="tp"), "no partition of lanes 'tp'"),
        (lambda b: (b.meet([0]), b.meet([0])), "takes part in two meetings"),
    ],
)
def test_wrong_meetings_are_refused(spoil: Any, says: str) -> None:
    b = GraphBuilder(1)
    b.add(Op(0, "send"))
    with pytest.raises(TopologyError, match=says):
        spoil(b)


def test_a_partition_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(TopologyError, match=r"shape \(3,\)"):
        GraphBuilder(2, {"dp": np.zeros(3, dtype=np.int64)}).build()


def test_times_of_the_wrong_shape_are_refused() -> None:
    b = GraphBuilder(2)
    b.add(Op(0, "forward-compute"))
    with pytest.raises(ValueError, match="times have shape"):
        b.build().evaluate(np.zeros((1, 1, 1)))


def events_in_time(
    preds: list[list[int]], meetings: list[list[int]], times: np.ndarray[Any, Any], lanes: int, wide: set[int]
) -> float:
    """An independent simulator: a queue of events, one operation of one lane at a time."""
    meeting_of = {op: m for m, ops in enumerate(meetings) for op in ops}
    left = {(op, lane): len(preds[op]) for op in range(len(preds)) for lane in range(lanes)}
    ready = dict.fromkeys(left, 0.0)
    arrived: dict[tuple[int, int], dict[tuple[int, int], float]] = {}
    queue: list[tuple[float, int, int, int]] = [(0.0, 0, op, lane) for (op, lane), n in left.items() if n == 0]
    heapq.heapify(queue)
    finish = 0.0
    while queue:
        now, what, op, lane = heapq.heappop(queue)
        if what == 0:
            if op not in meeting_of:
                heapq.heappush(queue, (now + float(times[op, lane, 0]), 1, op, lane))
                continue
            m = meeting_of[op]
            key = (m, 0 if m in wide else lane)
            arrived.setdefault(key, {})[op, lane] = now
            expected = len(meetings[m]) * (lanes if m in wide else 1)
            if len(arrived[key]) == expected:
                for o, at in arrived[key]:
                    heapq.heappush(queue, (now + float(times[o, at, 0]), 1, o, at))
            continue
        finish = max(finish, now)
        for follower, before in enumerate(preds):
            for p in before:
                if p == op:
                    left[follower, lane] -= 1
                    ready[follower, lane] = max(ready[follower, lane], now)
                    if left[follower, lane] == 0:
                        heapq.heappush(queue, (ready[follower, lane], 0, follower, lane))
    return finish


@given(st.data())
@settings(max_examples=80)
def test_levels_give_what_an_event_queue_gives(data: st.DataObject) -> None:
    lanes, count = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 12))
    b = GraphBuilder(lanes, {"dp": np.zeros(lanes, dtype=np.int64)})
    preds: list[list[int]] = []
    for op in range(count):
        before = sorted(data.draw(st.sets(st.integers(0, op - 1), max_size=3))) if op else []
        preds.append(before)
        b.add(Op(op % 3, "work", op), before)
    meetings, wide = [], set()
    for op in range(count):
        if data.draw(st.booleans()):
            across = data.draw(st.booleans())
            if across:
                wide.add(len(meetings))
            b.meet([op], across="dp" if across else "")
            meetings.append([op])
    times = np.array(data.draw(st.lists(st.integers(0, 9), min_size=count * lanes, max_size=count * lanes)), dtype=float)
    shaped = times.reshape(count, lanes, 1)
    finish = float(b.build().evaluate(shaped).end.max())
    assert finish == events_in_time(preds, meetings, shaped, lanes, wide)


def two_stage_job(lanes: int) -> GraphBuilder:
    b = GraphBuilder(lanes, {"dp": np.zeros(lanes, dtype=np.int64)})
    first = b.add(Op(0, "forward-compute"))
    second = b.add(Op(1, "forward-compute"), after=[first])
    for stage, op in ((0, first), (1, second)):
        reduce = b.add(Op(stage, "reduce"), after=[op])
        b.meet([reduce], across="dp")
    return b


def test_mending_the_culprit_recovers_the_loss() -> None:
    graph = two_stage_job(40).build()
    times = np.ones((4, 40, 2))
    times[0, 7] = 3.0
    report = WhatIf(graph, times).report()
    assert report.slowest[0] == (7, 0)
    assert report.recovered_by_slowest_3pct == pytest.approx(1.0, abs=0.05)
    assert report.by_worker.argmax() == 7 * 2
    assert report.waste == pytest.approx(1 - 1 / report.slowdown)


def test_a_heavy_last_stage_is_the_stage_and_no_worker() -> None:
    graph = two_stage_job(40).build()
    times = np.ones((4, 40, 2))
    times[1] = 3.0
    report = WhatIf(graph, times).report()
    assert report.by_stage[1] == pytest.approx(1.2)
    assert report.by_stage[0] < 1
    assert report.slowdown == pytest.approx(1.0)
    assert report.recovered_by_slowest_3pct == 0.0


def test_a_step_in_which_no_time_passes_is_refused() -> None:
    with pytest.raises(ValueError, match="no time passes"):
        WhatIf(two_stage_job(2).build(), np.zeros((4, 2, 1)))


def test_a_step_without_loss_recovers_nothing() -> None:
    what_if = WhatIf(two_stage_job(2).build(), np.ones((4, 2, 1)))
    assert what_if.recovered_by(what_if.stage(1)) == 0.0

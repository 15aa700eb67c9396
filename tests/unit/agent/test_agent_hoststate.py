"""From datagrams to batches."""

from __future__ import annotations

import pytest
from agent_unit_kit import MONO_NS, NOW_US, hello, iteration
from hypothesis import given
from hypothesis import strategies as st

from eroica.producers.agent.counters import Counters
from eroica.producers.agent.hoststate import MAX_EARLY, MAX_EARLY_EVENTS, HostState
from eroica.producers.agent.launches import GONE_LINGER_US, PROCESS_GONE
from eroica.producers.hook.wire import GOODBYE, LOADER_ENTER, Event
from eroica.schemas.codec import decode, encode
from eroica.schemas.iterations import IterationBatch, RankIterations

pytestmark = pytest.mark.unit
SECOND = 1_000_000


def make(ranks_per_shard: int = 1_024) -> HostState:
    return HostState("h", ranks_per_shard, Counters())


def batches(state: HostState, after_us: int = 0) -> list[IterationBatch]:
    outputs = state.batches(NOW_US + after_us, MONO_NS + after_us * 1_000)
    found = []
    for output in outputs:
        assert isinstance(output.message, IterationBatch)
        assert output.key == f"{output.message.job}/{output.message.shard}"
        assert output.event_time_us == output.message.sent_at_us
        found.append(output.message)
    return found


def goodbye(pid: int, step: int = 0) -> Event:
    return Event(GOODBYE, pid, step, MONO_NS, NOW_US * 1_000, 0)


def test_consecutive_iterations_share_a_record_and_a_gap_starts_another() -> None:
    state = make()
    state.hello(hello(), NOW_US, MONO_NS)
    for step in (10, 11, 12, 15, 16):
        state.event(iteration(100, step, duration_us=step))
    (batch,) = batches(state)
    assert [(r.first_step, r.duration_us) for r in batch.ranks] == [(10, [10, 11, 12]), (15, [15, 16])]
    assert (batch.job, batch.run_id, batch.host, batch.world_size) == ("job", "run-1", "h", 4)
    (nothing,) = batches(state, SECOND)
    assert nothing.ranks == [RankIterations(rank=0, idle_us=SECOND, last_event="iteration")]
    assert nothing.seq == batch.seq + 1


def test_ranks_are_cut_into_their_shards_and_a_batch_is_always_newer_than_the_last() -> None:
    state = make(ranks_per_shard=2)
    for rank in range(4):
        state.hello(hello(100 + rank, rank), NOW_US, MONO_NS)
    found = [*batches(state), *batches(state)]
    assert [(b.shard, [r.rank for r in b.ranks]) for b in found] == [(0, [0, 1]), (1, [2, 3])] * 2
    times = [b.sent_at_us for b in found]
    assert times == sorted(set(times))


def test_two_jobs_on_one_host_are_told_apart() -> None:
    state = make()
    state.hello(hello(1, job="a", run_id="ra"), NOW_US, MONO_NS)
    state.hello(hello(2, job="b", run_id="rb"), NOW_US, MONO_NS)
    state.event(iteration(2, 5))
    found = {b.job: b for b in batches(state)}
    assert found["a"].ranks[0].duration_us == []
    assert found["b"].ranks[0].duration_us == [1_000]


def test_idle_time_is_the_age_of_the_last_event_of_any_kind() -> None:
    state = make()
    state.hello(hello(), NOW_US, MONO_NS)
    state.event(Event(LOADER_ENTER, 100, 7, MONO_NS + 2 * SECOND * 1_000, 0, 0))
    (batch,) = batches(state, 5 * SECOND)
    assert (batch.ranks[0].idle_us, batch.ranks[0].last_event) == (3 * SECOND, "loader_enter")


def test_a_goodbye_ends_a_rank_and_the_launch_is_forgotten_after_all_said_it() -> None:
    state = make()
    for rank in (0, 1):
        state.hello(hello(100 + rank, rank), NOW_US, MONO_NS)
    state.event(goodbye(100))
    (batch,) = batches(state)
    assert [r.ended for r in batch.ranks] == [True, False]
    state.event(goodbye(101))
    assert [r.ended for r in batches(state, SECOND)[0].ranks] == [True, True]
    batches(state, 7 * SECOND)
    assert batches(state, 8 * SECOND) == []
    assert state.runs == {} and state.living_pids() == []


def test_a_process_that_went_without_goodbye_is_no_orderly_end() -> None:
    state = make()
    for rank in (0, 1):
        state.hello(hello(100 + rank, rank), NOW_US, MONO_NS)
    state.gone(101)
    (batch,) = batches(state, SECOND)
    assert [(r.last_event, r.ended) for r in batch.ranks] == [("hello", False), (PROCESS_GONE, False)]
    state.gone(100)
    batches(state, 2 * SECOND)
    assert batches(state, GONE_LINGER_US), "a launch that crashed must be reported long enough to be seen standing still"
    batches(state, 3 * SECOND + GONE_LINGER_US)
    assert batches(state, 4 * SECOND + GONE_LINGER_US) == []


def test_a_restarted_rank_is_its_newest_process() -> None:
    state = make()
    state.hello(hello(100), NOW_US, MONO_NS)
    state.event(iteration(100, 50))
    batches(state)
    state.hello(hello(200), NOW_US + SECOND, MONO_NS)
    state.event(iteration(100, 51))
    state.event(iteration(200, 0))
    (batch,) = batches(state, SECOND)
    assert [(r.first_step, r.duration_us) for r in batch.ranks] == [(0, [1_000])]
    assert state.living_pids() == [200]


def test_a_launch_that_died_and_was_begun_anew_has_ended_and_the_new_one_counts_from_nought() -> None:
    state = make()
    for rank in (0, 1):
        state.hello(hello(100 + rank, rank), NOW_US, MONO_NS)
        state.event(iteration(100 + rank, 400))
    state.gone(101)
    state.hello(hello(200, 0, run_id="run-2"), NOW_US + SECOND, MONO_NS)
    state.event(iteration(200, 0))
    found = {(b.run_id, r.rank): r for b in batches(state, 2 * SECOND) for r in b.ranks}
    assert not any(r.ended for r in found.values()), "rank 0 of the first still runs: these are two jobs of one name"
    assert (found["run-1", 0].first_step, found["run-2", 0].first_step) == (400, 0)
    state.gone(100)
    found = {(b.run_id, r.rank): r for b in batches(state, 3 * SECOND) for r in b.ranks}
    assert [found["run-1", rank].ended for rank in (0, 1)] == [True, True]
    assert not found["run-2", 0].ended
    assert {b.run_id for b in batches(state, 9 * SECOND)} == {"run-1", "run-2"}, "once more, then it is forgotten"
    assert {b.run_id for b in batches(state, 10 * SECOND)} == {"run-2"}


def test_events_before_the_hello_are_kept_for_it() -> None:
    state = make()
    state.event(iteration(100, 3))
    state.event(iteration(100, 4))
    assert batches(state) == []
    state.hello(hello(100), NOW_US, MONO_NS)
    assert batches(state)[0].ranks[0].duration_us == [1_000, 1_000]


def test_a_flood_of_unknown_processes_takes_bounded_memory() -> None:
    state = make()
    for pid in range(1, 5 * MAX_EARLY):
        state.event(iteration(pid, 1))
    for step in range(3 * MAX_EARLY_EVENTS):
        state.event(iteration(10**6, step))
    assert len(state._early) <= MAX_EARLY
    assert sum(map(len, state._early.values())) <= MAX_EARLY + MAX_EARLY_EVENTS


def test_a_refused_launch_sends_nothing_and_does_not_pile_up() -> None:
    state = make()
    state.hello(hello(), NOW_US, MONO_NS)
    state.runs["job", "run-1"].refused = True
    state.event(iteration(100, 1))
    assert batches(state) == []
    state.runs["job", "run-1"].refused = False
    state.event(iteration(100, 2))
    assert [(r.first_step, len(r.duration_us)) for r in batches(state)[0].ranks] == [(2, 1)]


def test_many_iterations_are_cut_into_messages_that_fit() -> None:
    state = make()
    for rank in range(8):
        state.hello(hello(100 + rank, rank, world_size=8), NOW_US, MONO_NS)
        for step in range(15_000):
            state.event(iteration(100 + rank, step, duration_us=10**9))
    found = batches(state)
    assert len(found) > 1
    assert [r.rank for b in found for r in b.ranks] == list(range(8))
    for batch in found:
        assert decode("iterations", encode(batch)) == batch


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), max_size=80),
    st.lists(st.integers(0, 80), max_size=5),
)
def test_each_iteration_goes_out_once_and_in_order_whatever_comes(calls: list[tuple[int, int]], cuts: list[int]) -> None:
    state = make()
    for rank in range(4):
        state.hello(hello(100 + rank, rank), NOW_US, MONO_NS)
    sent: dict[int, list[int]] = {}
    for index, (rank, step) in enumerate([*calls, (0, -1)]):
        if index in cuts or step < 0:
            for batch in batches(state, index):
                for one in batch.ranks:
                    sent.setdefault(one.rank, []).extend(range(one.first_step, one.first_step + len(one.duration_us)))
        if step >= 0:
            state.event(iteration(100 + rank, step))
    for rank in range(4):
        heard: list[int] = []
        for one, step in calls:
            if one == rank and (not heard or step > heard[-1]):
                heard.append(step)
        assert sent[rank] == heard

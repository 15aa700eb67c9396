"""Matrices of receive waits: each effect by itself, what chance and lateness make of them, and what a verdict says."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from gallery import simulated
from hypothesis import given, settings
from hypothesis import strategies as st
from scenes import STEPS, Scene, steady
from test_explain import assert_made_again, judged

from eroica.localizer.build import build_frame
from eroica.localizer.causes.exchanges import Exchange, find_exchanges
from eroica.localizer.causes.measures import Measures
from eroica.localizer.core import LocalizerCore
from eroica.localizer.receive import effects
from eroica.localizer.rules.eroica import judge_eroica
from eroica.schemas.errors import SchemaError
from eroica.schemas.groups import GroupChunk, ReceiveColumns, ReceiveGroup
from eroica.schemas.outputs import InputRef
from eroica.schemas.ranks import format_ranks
from eroica.schemas.settings import LocalizeSettings

pytestmark = pytest.mark.unit

RANKS, HOST, USUAL_US = 16, 4, 4_000.0
Change = Callable[[np.ndarray], None]


def matrix(seed: int, noise: float = 0.1, ranks: int = RANKS, host: int = HOST) -> np.ndarray:
    """Waits of a step, µs, shape (sources, destinations, steps): three times as long between hosts."""
    rng = np.random.default_rng(seed)
    near = np.arange(ranks)[:, None] // host == np.arange(ranks) // host
    base = np.where(near, USUAL_US, 3 * USUAL_US)
    return base[:, :, None] * rng.lognormal(0.0, noise, (ranks, ranks, STEPS))


def told(waits: np.ndarray, name: str = "ep", host: int = HOST, work_us: float = 60_000.0) -> GroupChunk:
    """A job of which each rank tells its column; nobody is slow of itself, and all wait for a third of the step."""
    ranks = len(waits)
    members = list(range(ranks))
    # The common collective lasts a while, so that there is waiting that could be given back.
    [chunk] = Scene(
        ranks, steady(work_us, {}, noise=0.005, seed=3), hosts=lambda rank: f"host-{rank // host}", communicators=[members]
    ).chunks()
    longer = 40_000.0
    e, s = chunk.executions, chunk.steps
    slots = msgspec.structs.replace(
        e, duration_us=[d + longer for d in e.duration_us], exposed_us=[d + longer for d in e.exposed_us]
    )
    columns = ReceiveColumns()
    for row in range(ranks):
        mine = waits[:, row]
        columns.row.append(row)
        columns.group.append(0)
        columns.count.append(STEPS)
        columns.total_us.append(mine.sum(axis=1).tolist())
        columns.max_us.append(mine.max(axis=1).tolist())
    return msgspec.structs.replace(
        chunk,
        executions=slots,
        steps=msgspec.structs.replace(s, duration_us=[d + longer for d in s.duration_us]),
        receive_groups=[ReceiveGroup(name=name, sources=format_ranks(range(ranks)))],
        receive_waits=columns,
    )


def exchanges(chunk: GroupChunk) -> list[Exchange]:
    return find_exchanges(Measures(build_frame([chunk]), LocalizeSettings(), None))[0]


def slow_source(w: np.ndarray) -> None:
    w[5] *= 2.0


def late_source(w: np.ndarray) -> None:
    w[5] += 20_000.0
    w[:, 5] = 0.0


def slow_destination(w: np.ndarray) -> None:
    w[:, 9] *= 2.0


def early_destination(w: np.ndarray) -> None:
    w[:, 9] += 20_000.0
    w[9] = 0.0


def slow_link(w: np.ndarray) -> None:
    w[5] *= 2.0
    w[:, 5] *= 2.0


def slow_pair(w: np.ndarray) -> None:
    w[2, 13] *= 3.0


def slow_hosts(w: np.ndarray) -> None:
    w[0:4, 8:12] *= 3.0
    w[8:12, 0:4] *= 3.0


def all_slow(w: np.ndarray) -> None:
    w *= 5.0


def once(w: np.ndarray) -> None:
    w[5, :, 2] += 100_000.0


def barely(w: np.ndarray) -> None:
    w[5] *= 1.15


def many_pairs(w: np.ndarray) -> None:
    for i in range(6):
        w[i, 15 - 2 * i] *= 4.0


Found = list[tuple[str, list[int], tuple[str, ...]]]
CASES: list[tuple[Change, Found]] = [
    (slow_source, [("sends", [5], ("host-1",))]),
    (late_source, [("late", [5], ("host-1",))]),
    (slow_destination, [("receives", [9], ("host-2",))]),
    (early_destination, []),
    (slow_link, [("link", [5], ("host-1",))]),
    (slow_pair, [("pair", [2, 13], ("host-0", "host-3"))]),
    (slow_hosts, [("hosts", [], ("host-0", "host-2"))]),
    (all_slow, []),
    (once, []),
    (barely, []),
    (many_pairs, []),
]


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.15])
@pytest.mark.parametrize(("change", "wanted"), CASES, ids=lambda v: getattr(v, "__name__", ""))
def test_each_effect(change: Change, wanted: Found, noise: float) -> None:
    waits = matrix(1, noise)
    change(waits)
    assert [(e.kind, e.ranks.tolist(), e.hosts) for e in exchanges(told(waits))] == wanted


@pytest.mark.parametrize("missing", [0.1, 0.3])
@pytest.mark.parametrize(
    ("change", "wanted"), [c for c in CASES if c[0] is not slow_pair], ids=lambda v: getattr(v, "__name__", "")
)
def test_missing_entries(change: Change, wanted: Found, missing: float) -> None:
    """What is negative was not measured."""
    waits = matrix(2)
    change(waits)
    waits[np.random.default_rng(0).random(waits.shape[:2]) < missing] = -1.0
    assert [(e.kind, e.ranks.tolist(), e.hosts) for e in exchanges(told(waits))] == wanted


def test_ranks_that_told_nothing() -> None:
    """Destinations may be missing; a source without a summary is not named, and a note says so."""
    waits = matrix(3)
    slow_source(waits)
    chunk = told(waits)
    lacking = [row for row in range(RANKS) if row not in (5, 7, 11)]
    w = chunk.receive_waits
    chunk = msgspec.structs.replace(
        chunk,
        receive_waits=ReceiveColumns(
            row=lacking,
            group=[0] * len(lacking),
            count=[w.count[r] for r in lacking],
            total_us=[w.total_us[r] for r in lacking],
            max_us=[w.max_us[r] for r in lacking],
        ),
    )
    found, notes = find_exchanges(Measures(build_frame([chunk]), LocalizeSettings(), None))
    assert found == []
    assert "all wait for rank 5" in notes[0]


def test_too_small_or_empty() -> None:
    assert exchanges(told(matrix(1, ranks=2))) == []
    assert exchanges(told(np.zeros((8, 8, STEPS)))) == []
    assert exchanges(told(np.full((8, 8, STEPS), -1.0))) == []


def test_healthy_matrices_accuse_nobody() -> None:
    for seed in range(200):
        noise = (0.02, 0.1, 0.3, 0.6)[seed % 4]
        ranks = (4, 8, 16, 24)[seed // 4 % 4]
        assert exchanges(told(matrix(seed, noise, ranks))) == [], (seed, noise, ranks)


JOB = """name: x
seed: {seed}
job:
  {{name: x, world: 32, framework: megatron, sizes: {{ep: {ep}}}, micro_batches: 2, sharding: 1,
    model: {{experts: true, {model}}}}}
profile: {{receive_waits: {told}}}
faults: [{fault}]
"""


def job(fault: str = "", seed: int = 1, ep: int = 16, model: str = "", told: str = "true") -> str:
    return JOB.format(fault=fault, seed=seed, ep=ep, model=model, told=told)


@pytest.mark.parametrize("model", ["", "expert_spread: 0.3", "expert_spread: 0.3, length_spread: 0.2"])
def test_healthy_jobs_accuse_nobody(model: str) -> None:
    """Unequal tokens make other ranks late in other steps: that is no place."""
    for seed in range(12):
        frame = build_frame(simulated(job(seed=seed, ep=(8, 16, 32)[seed % 3], model=model))[0])
        assert frame.receive.row
        found, _ = find_exchanges(Measures(frame, LocalizeSettings(), None))
        assert found == [], (seed, model)


@pytest.mark.parametrize(
    ("fault", "ep", "kind"),
    [
        ("slow_gpu_clock", 16, "late"),
        ("nic_halved", 16, "link"),
        ("nvlink_down", 8, "link"),
        ("link_loss", 32, "hosts"),
    ],
)
def test_faults_of_simulated_jobs(fault: str, ep: int, kind: str) -> None:
    """The matrix points to the place, and the verdict holds it as evidence of the one cause that it names."""
    chunks, truth = simulated(job(f"{{fault: {fault}, dose: 1.3}}", ep=ep))
    [wanted] = truth["causes"]
    [one] = exchanges_of(chunks)
    assert one.kind == kind
    assert format_ranks(one.ranks) == wanted["suspects"]["ranks"]
    [seen] = judged(chunks)
    assert_made_again([seen])
    [cause] = seen.verdict.causes
    assert (cause.class_, cause.suspects.ranks, cause.suspects.links) == (
        wanted["class"],
        wanted["suspects"]["ranks"],
        wanted["suspects"]["links"],
    )
    assert [e for e in cause.evidence if e.rule == "eroica/receive-waits"]
    assert cause.confidence >= 0.5


def exchanges_of(chunks: list[GroupChunk]) -> list[Exchange]:
    return find_exchanges(Measures(build_frame(chunks), LocalizeSettings(), None))[0]


def test_other_bytes_do_not_change() -> None:
    """Without the switch a scenario is as it was."""
    off, _ = simulated(job(told="false"))
    on, _ = simulated(job())
    assert not any(c.receive_groups for c in off)
    emptied = [msgspec.structs.replace(c, receive_groups=[], receive_waits=ReceiveColumns()) for c in on]
    assert [msgspec.structs.replace(c, request=off[0].request, run_id=off[0].run_id) for c in emptied] == off


@pytest.mark.parametrize(
    ("change", "cls", "ranks"),
    [(slow_source, "worker", [5]), (slow_destination, "link", [9]), (slow_link, "link", [5]), (slow_hosts, "link", [])],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_what_only_the_matrix_shows(change: Change, cls: str, ranks: list[int]) -> None:
    """Nobody's own time and no other transfer is odd: the place is named, and each figure can be made again."""
    waits = matrix(4)
    change(waits)
    [seen] = judged([told(waits)])
    [cause] = seen.verdict.causes
    assert (cause.class_, cause.suspects.ranks) == (cls, format_ranks(ranks))
    assert cause.confidence >= 0.5
    assert assert_made_again([seen])


def test_who_comes_late_for_no_reason_of_its_own_is_not_accused() -> None:
    waits = matrix(5)
    late_source(waits)
    judgement = judge_eroica(build_frame([told(waits)]), LocalizeSettings())
    assert judgement.findings == []
    assert any("rank 5" in note and "own time" in note for note in judgement.notes)


def test_another_culprit_by_own_time_silences_the_matrix() -> None:
    """Ranks that wait for the culprit elsewhere come late too."""
    waits = matrix(6)
    slow_source(waits)
    chunk = told(waits)
    [slow] = Scene(RANKS, steady(60_000.0, {9: 1.6}), hosts=lambda rank: f"host-{rank // HOST}").chunks()
    both = msgspec.structs.replace(slow, receive_groups=chunk.receive_groups, receive_waits=chunk.receive_waits)
    judgement = judge_eroica(build_frame([both]), LocalizeSettings())
    assert [f.ranks.tolist() for f in judgement.findings] == [[9]]
    assert any("rank 5" in note for note in judgement.notes)


@settings(max_examples=25)
@given(st.permutations(range(8)), st.sampled_from([slow_source, slow_link, late_source]))
def test_other_numbers_of_ranks_permute_the_answer(order: list[int], change: Change) -> None:
    """All on one host, so that numbers mean nothing."""
    waits = matrix(7, ranks=8, host=8)
    change(waits)
    renamed = np.empty_like(waits)
    renamed[np.ix_(order, order)] = waits
    [before], [after] = exchanges(told(waits, host=8)), exchanges(told(renamed, host=8))
    assert after.kind == before.kind
    assert after.ranks.tolist() == [order[rank] for rank in before.ranks.tolist()]


def test_the_order_of_effects_is_global_row_column_pair() -> None:
    """A worked example: what each effect takes is no longer in those after it."""
    wait = np.full((6, 6), 10.0)
    wait[1] *= 3.0
    wait[:, 2] *= 2.0
    wait[0, 3] *= 4.0
    np.fill_diagonal(wait, np.nan)
    e = effects(wait, np.ones((6, 6), dtype=bool))
    assert np.exp(e.source) == pytest.approx([1, 3, 1, 1, 1, 1])
    assert np.exp(e.destination) == pytest.approx([1, 1, 2, 1, 1, 1])
    assert np.exp(e.pair[0, 3]) == pytest.approx(4)
    assert np.nansum(np.abs(e.pair)) == pytest.approx(np.log(4))


@pytest.mark.parametrize(
    "broken",
    [
        {"group": [1]},
        {"row": [99]},
        {"total_us": [[1.0]]},
        {"count": []},
        {"max_us": [[1.0] * 15]},
    ],
)
def test_a_chunk_that_contradicts_itself_is_refused(broken: dict[str, object]) -> None:
    chunk = told(matrix(1))
    one = {"row": [0], "group": [0], "count": [5], "total_us": [[1.0] * RANKS], "max_us": [[1.0] * RANKS], **broken}
    chunk = msgspec.structs.replace(chunk, receive_waits=ReceiveColumns(**one))  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="receive waits"):
        LocalizerCore(LocalizeSettings()).feed(chunk, InputRef("groups", 0, 0))


def test_what_a_worker_tells_twice_counts_once() -> None:
    waits = matrix(8)
    slow_link(waits)
    chunk = told(waits)
    w = chunk.receive_waits
    twice = ReceiveColumns(
        row=w.row * 2,
        group=w.group * 2,
        count=w.count * 2,
        total_us=w.total_us + w.total_us[::-1],
        max_us=w.max_us + w.max_us[::-1],
    )
    again = exchanges(msgspec.structs.replace(chunk, receive_waits=twice))
    assert [(e.kind, e.ranks.tolist()) for e in again] == [("link", [5])]

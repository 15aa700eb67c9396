from __future__ import annotations

import pytest
from msgspec import structs
from scenes import STEPS, Scene, steady, stuck

from eroica.localizer.build import build_frame
from eroica.localizer.core import LocalizerCore
from eroica.localizer.waiting import measure
from eroica.localizer.walk import walk
from eroica.schemas.outputs import InputRef
from eroica.schemas.settings import LocalizeSettings
from eroica.schemas.verdicts import Verdict

pytestmark = pytest.mark.unit

SETTINGS = LocalizeSettings()
BASE_US = 50_000.0


def judge(scene: Scene, settings: LocalizeSettings = SETTINGS) -> Verdict:
    core = LocalizerCore(settings)
    outputs = [o for at, chunk in enumerate(scene.chunks()) for o in core.feed(chunk, InputRef("groups", 0, at))]
    assert len(outputs) == 1
    verdict = outputs[0].message
    assert isinstance(verdict, Verdict)
    return verdict


def accused(verdict: Verdict) -> list[tuple[str, str]]:
    return [(cause.class_, cause.suspects.ranks) for cause in verdict.causes]


# A in tensor group (0,1) is late, so 1 is late in the data group (1,3), so 3 waits: 1 is innocent.
CASCADE = [(0, 1), (2, 3), (4, 5), (6, 7), (1, 3, 5, 7), (0, 2, 4, 6)]


@pytest.mark.parametrize(
    ("scene", "causes", "waiters"),
    [
        (  # two hosts at once, and a worker elsewhere
            Scene(32, steady(BASE_US, dict.fromkeys([*range(4, 12), 30], 1.6)), hosts=lambda r: f"host-{r // 4}"),
            [("host", "4-11"), ("worker", "30")],
            "0-3,12-29,31",
        ),
        (Scene(4, steady(BASE_US, {2: 1.6})), [("worker", "2")], "0-1,3"),
        (Scene(4, steady(BASE_US, {2: 2.5})), [("worker", "2")], "0-1,3"),
        (Scene(64, steady(BASE_US, {40: 1.5}, noise=0.02)), [("worker", "40")], "0-39,41-63"),
        (Scene(8, steady(BASE_US, {0: 1.8}), communicators=CASCADE), [("worker", "0")], "1-7"),
        (
            Scene(16, steady(BASE_US, dict.fromkeys(range(8), 1.6) | {}), hosts=lambda r: f"host-{r // 4}"),
            [],
            "",
        ),  # half of the job: nobody knows which half is right
        (
            Scene(32, steady(BASE_US, dict.fromkeys(range(4, 8), 1.6)), hosts=lambda r: f"host-{r // 4}"),
            [("host", "4-7")],
            "0-3,8-31",
        ),
    ],
)
def test_the_culprit_is_told_from_those_who_wait(scene: Scene, causes: list[tuple[str, str]], waiters: str) -> None:
    verdict = judge(scene)
    assert accused(verdict) == causes
    assert verdict.waiters.ranks == waiters
    assert verdict.status == ("culprit_found" if causes else "no_fault_found")


def test_the_function_that_grew_and_its_figures_are_named() -> None:
    verdict = judge(Scene(4, steady(BASE_US, {2: 2.0})))
    cause = verdict.causes[0]
    assert cause.functions == ["work_0 < main"]
    function = next(e for e in cause.evidence if e.kind == "function")
    assert (function.value, function.expected, function.score) == (100.0, 50.0, 2.0)
    assert cause.explains == pytest.approx(1.0, abs=0.02)
    assert verdict.impact.slowdown == pytest.approx(101.0 / 51.0, rel=0.05)
    assert cause.isolation_group.ranks == "0-3"


def test_two_culprits_that_take_turns_in_being_last_are_both_named() -> None:
    base = steady(BASE_US, {})

    def own(rank: int, step: int, at: int) -> float:
        # Both are slow in each step; who is slower alternates.
        return base(rank, step, at) * {3: 1.8 if step % 2 else 1.6, 5: 1.6 if step % 2 else 1.8}.get(rank, 1.0)

    found = accused(judge(Scene(16, own)))
    assert sorted(found) == [("worker", "3"), ("worker", "5")]


@pytest.mark.parametrize("ranks", [4, 8, 64])
def test_a_healthy_noisy_job_accuses_nobody(ranks: int) -> None:
    wrong = [
        (seed, noise)
        for noise in (0.02, 0.1, 0.2)
        for seed in range(70 if ranks < 64 else 20)
        if accused(judge(Scene(ranks, steady(BASE_US, {}, noise=noise, seed=seed))))
    ]
    assert wrong == []


@pytest.mark.parametrize(("slow", "causes"), [(1.6, [("worker", "2")]), (1.05, [])])
def test_without_collectives_only_functions_are_compared_and_less_is_claimed(slow: float, causes: list[tuple[str, str]]) -> None:
    verdict = judge(Scene(8, steady(BASE_US, {2: slow}), collectives_seen=False))
    assert accused(verdict) == causes
    assert any("only functions were compared" in note for note in verdict.coverage.notes)
    assert not verdict.waiters.ranks
    if causes:
        assert verdict.causes[0].functions == ["work_0 < main"]
        assert verdict.causes[0].confidence < judge(Scene(8, steady(BASE_US, {2: slow}))).causes[0].confidence


def test_a_healthy_noisy_job_without_collectives_accuses_nobody() -> None:
    scenes = ((seed, noise) for noise in (0.02, 0.1, 0.2) for seed in range(70))
    wrong = [
        key for key in scenes if accused(judge(Scene(8, steady(BASE_US, {}, noise=key[1], seed=key[0]), collectives_seen=False)))
    ]
    assert wrong == []


PAIRS = [(r, r + 1) for r in range(0, 16, 2)]
QUADS = [range(r, r + 4) for r in range(0, 16, 4)]


@pytest.mark.parametrize(
    ("slow", "causes"),
    [
        ([], []),
        ([3], []),  # one pair is not the fabric, and what else goes through its ranks is as fast as anybody's
        ([1, 3, 5], [("fabric", "")]),
        ([3, 9], [("link", "6-7")]),  # all that goes through both
    ],
)
def test_slow_transfers_with_no_place_in_common_are_the_fabric_only_if_they_are_several(
    slow: list[int], causes: list[tuple[str, str]]
) -> None:
    scene = Scene(
        16,
        steady(BASE_US, {}),
        communicators=[*PAIRS, *QUADS],
        kinds=["tp"] * 8 + ["cp"] * 4,
        transfers=dict.fromkeys(slow, 40.0),
    )
    assert accused(judge(scene)) == causes


def test_a_heavy_stage_is_no_workers_fault() -> None:
    # Ranks 4-7 are a stage that takes twice as long: compared within their role, none of them is the odd one.
    verdict = judge(Scene(8, steady(BASE_US, dict.fromkeys(range(4, 8), 2.0)), classes={"pp0": range(4), "pp1": range(4, 8)}))
    assert not [c for c in verdict.causes if c.suspects.ranks]


def test_a_pause_that_wanders_from_rank_to_rank_is_nobodys_fault() -> None:
    base = steady(BASE_US, {})
    verdict = judge(Scene(8, lambda rank, step, at: base(rank, step, at) * (2.0 if rank == step else 1.0)))
    assert not [c for c in verdict.causes if c.suspects.ranks]


@pytest.mark.parametrize(("share", "cls"), [(0.04, None), (0.08, None), (0.2, "software_pause")])
def test_a_little_of_what_most_jobs_have_is_noted_as_long_as_no_past_tells_how_much(share: float, cls: str | None) -> None:
    verdict = judge(Scene(8, steady(BASE_US, {}), pauses={"alloc": share * BASE_US}))
    assert [cause.class_ for cause in verdict.causes] == ([cls] if cls else [])
    assert any("in alloc" in note for note in verdict.coverage.notes) == (cls is None)


@pytest.mark.parametrize(("begins", "cls"), [({}, None), ({0: 1}, None), (dict.fromkeys(range(8), 1), "software_pause")])
def test_a_warm_up_in_a_first_step_that_not_all_share_is_no_pause_of_every_step(begins: dict[int, int], cls: str | None) -> None:
    """All allocation is in step 0; who begins later has as much of it in the steps it profiled."""
    each = 0.3 * BASE_US
    base = steady(BASE_US, {})
    warm = Scene(
        8,
        lambda rank, step, at: base(rank, step, at) + (STEPS * each if step == 0 else 0.0),
        pauses={"alloc": each},
        begins=begins,
    )
    assert [cause.class_ for cause in judge(warm).causes] == ([cls] if cls else [])


def test_who_may_have_been_waited_for_is_told_beside_a_pause_that_all_take() -> None:
    verdict = judge(Scene(8, steady(BASE_US, {3: 1.06}, noise=0.03, seed=5), pauses={"alloc": 0.3 * BASE_US}))
    assert [cause.class_ for cause in verdict.causes] == ["software_pause"]
    assert any("rank 3 causes" in note for note in verdict.coverage.notes)


@pytest.mark.parametrize(("share", "noted"), [(0.0, False), (0.3, True)])
def test_nobody_is_cleared_where_a_rank_is_missing_and_the_others_wait(share: float, noted: bool) -> None:
    verdict = judge(Scene(8, steady(BASE_US, {6: 1 + share}), absent=[6]))
    assert verdict.causes == []
    assert any("maybe for those that are missing" in note for note in verdict.coverage.notes) == noted


@pytest.mark.parametrize(
    ("device", "readings", "causes"),
    [
        ("H200", {"cpu_pressure": 0.6}, [("data_imbalance", "")]),
        ("cpu", {"cpu_pressure": 0.01, "cpu_busy": 0.5}, [("data_imbalance", "")]),
        ("cpu", {"cpu_pressure": 0.6, "cpu_busy": 0.5}, []),
        ("cpu", {"cpu_steal": 0.2}, []),
        ("cpu", {"mem_available": 0.5}, []),  # nobody knows
    ],
)
def test_threads_that_wait_for_a_cpu_are_not_unequal_work(
    device: str, readings: dict[str, float], causes: list[tuple[str, str]]
) -> None:
    verdict = judge(Scene(8, steady(BASE_US, {}, noise=0.3), phase="forward", device=device, readings=readings))
    assert accused(verdict) == causes
    assert any("short of CPUs" in note for note in verdict.coverage.notes) == (not causes)


def test_missing_ranks_lower_confidence_and_are_listed() -> None:
    whole = judge(Scene(8, steady(BASE_US, {2: 1.8})))
    part = judge(Scene(8, steady(BASE_US, {2: 1.8}), absent=(5, 6)))
    assert accused(part) == [("worker", "2")]
    assert (part.coverage.received, part.coverage.expected, part.coverage.missing) == (6, 8, "5-6")
    assert part.causes[0].confidence < whole.causes[0].confidence
    assert any("lack members" in note for note in part.coverage.notes)


def test_a_missing_culprit_does_not_make_somebody_else_guilty() -> None:
    verdict = judge(Scene(8, steady(BASE_US, {2: 1.8}), absent=(2,)))
    assert accused(verdict) == []


def test_too_little_is_said_to_be_too_little() -> None:
    verdict = judge(Scene(8, steady(BASE_US, {2: 1.8}), absent=(0, 3, 4, 5, 6)))
    assert (verdict.status, verdict.causes) == ("insufficient_data", [])
    two = judge(Scene(2, steady(BASE_US, {1: 1.8})))  # of two, nobody knows which is right
    assert (two.status, two.causes) == ("insufficient_data", [])


@pytest.mark.parametrize(
    ("threads", "status", "ranks"),
    [
        (dict.fromkeys(range(8), "main;train;all_reduce") | {5: "main;train;next;queue_put"}, "culprit_found", "5"),
        (dict.fromkeys(range(8), "main;train;all_reduce"), "insufficient_data", ""),
        ({r: f"main;train;f{'abcdefgh'[r]}" for r in range(8)}, "insufficient_data", ""),
        ({r: f"main;{'ab'[r // 2]}" for r in range(4)}, "insufficient_data", ""),
        ({0: "main;a", 1: "main;b"}, "insufficient_data", ""),
    ],
)
def test_stacks_of_a_stuck_job(threads: dict[int, str], status: str, ranks: str) -> None:
    [output] = LocalizerCore(SETTINGS).feed(stuck(threads), InputRef("groups", 0, 0))
    verdict = output.message
    assert isinstance(verdict, Verdict)
    assert verdict.status == status
    assert "".join(c.suspects.ranks for c in verdict.causes) == ranks
    assert all(c.class_ == "hang" for c in verdict.causes)


def test_a_job_that_stands_still_is_never_said_to_be_well_and_places_are_told() -> None:
    [output] = LocalizerCore(SETTINGS).feed(
        stuck({r: f"main;{'ab'[r // 2]}" for r in range(4)}, world=4), InputRef("groups", 0, 0)
    )
    verdict = output.message
    assert isinstance(verdict, Verdict)
    assert "the job stands still" in verdict.headline
    assert "where they stand: ranks 0-1 in a < main; ranks 2-3 in b < main" in verdict.coverage.notes


def test_a_hang_names_files_with_their_lines_and_places_once() -> None:
    """Lines and numbers that differ make no other place; they are shown as the first rank has them."""
    usual = {r: f"main (job.py:9);all_reduce (comm.py:{r})" for r in range(10)}
    threads = usual | {4: "main (job.py:9);read (load.py:97)", 7: "main (job.py:9);read (load.py:98)"}
    [output] = LocalizerCore(SETTINGS).feed(stuck(threads), InputRef("groups", 0, 0))
    verdict = output.message
    assert isinstance(verdict, Verdict)
    [cause] = verdict.causes
    assert cause.suspects.ranks == "4,7"
    assert cause.functions == ["read (load.py:97) < main (job.py:9)"]
    stacks = [e for e in cause.evidence if e.kind == "stack"]
    assert [e.subject for e in stacks[:2]] == [
        "rank 4: read (load.py:97) < main (job.py:9)",
        "rank 7: read (load.py:98) < main (job.py:9)",
    ]
    assert stacks[0].rule == "differs from: all_reduce (comm.py:0) < main (job.py:9)"


def test_blame_is_conserved() -> None:
    frame = build_frame(
        Scene(16, steady(BASE_US, {3: 1.5}, noise=0.1), communicators=[range(8), range(8, 16), range(16)]).chunks()
    )
    waiting = measure(frame)
    blame = walk(frame, waiting)
    assert blame.steps.tolist() == list(range(STEPS))
    told = float(blame.kept.sum()) + blame.unexplained_us + blame.before_window_us
    assert told == pytest.approx(waiting.total_us, rel=0.01)


@pytest.mark.parametrize(("share", "said"), [(0.95, True), (0.3, False), (None, False)])
def test_impact_is_an_upper_bound_where_the_hosts_set_the_pace(share: float | None, said: bool) -> None:
    chunks = Scene(8, steady(BASE_US, {2: 1.6})).chunks()
    figures = {} if share is None else {"launch_bound_share": share}
    told = [structs.replace(c, workers=[structs.replace(w, figures=figures) for w in c.workers]) for c in chunks]
    core = LocalizerCore(SETTINGS)
    [output] = [o for at, chunk in enumerate(told) for o in core.feed(chunk, InputRef("groups", 0, at))]
    assert isinstance(output.message, Verdict)
    assert any("upper bound" in note for note in output.message.coverage.notes) == said

"""Fault leaves: named on positive evidence only, from files that anybody may extend and nobody can break the localizer with."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import msgspec
import numpy as np
import pytest
from gallery import simulated, true_findings
from scenes import Scene, steady

from eroica.localizer.actions import Advice, facts_of
from eroica.localizer.build import build_frame
from eroica.localizer.frame import Frame
from eroica.localizer.judgement import Finding
from eroica.localizer.playbook import Playbook, load_playbook
from eroica.localizer.playbook.conditions import holds, measure
from eroica.localizer.playbook.loader import BUILT_IN, read_file
from eroica.localizer.playbook.model import Condition, Limit
from eroica.localizer.playbook.patterns import found, problem
from eroica.schemas.errors import InvalidInput
from eroica.schemas.groups import FunctionName, MetricColumns, PatternColumns, PauseColumns
from eroica.schemas.verdicts import CauseClass
from eroica.simulator.faults import FAULTS

pytestmark = pytest.mark.unit

ADVICE = Advice()
HANGS = {
    "hang_before": "stuck_lock",
    "hang_inside": "stuck_device",
    "hang_after": "stuck_storage",
    "hang_loader": "stuck_loader",
    "hang_deadlock": "crossed_collectives",
}
JOB = "{name: x, world: 32, framework: megatron, sizes: {tp: 2, pp: 2}, micro_batches: 4, sharding: 1}"
UNDOSED = {"pcie_downgrade", "cpu_contention", *HANGS}
"""A dose of 1.3 is more than these can do to a step, or they have none."""


def scenario(fault: str) -> str:
    dose = "" if fault in UNDOSED else ", dose: 1.3"
    return f"name: x\njob: {JOB}\nfaults: [{{fault: {fault}{dose}}}]\n"


@pytest.mark.parametrize("fault", [*FAULTS, *HANGS])
def test_every_fault_of_the_simulator_gets_its_name_once_the_place_is_known(fault: str) -> None:
    chunks, truth = simulated(scenario(fault))
    frame, findings = build_frame(chunks), true_findings(truth)
    leaf = ADVICE.leaf(frame, findings[0], findings)
    assert leaf is not None
    assert leaf.signature.fault.split(".")[0] == HANGS.get(fault, fault)
    assert leaf.evidence
    assert {item.rule for item in leaf.evidence} == {f"playbook/{leaf.signature.fault}"}


@pytest.mark.parametrize("cls", ["worker", "host", "link"])
def test_a_place_without_evidence_has_no_fault(cls: CauseClass) -> None:
    chunks, _ = simulated(f"name: x\njob: {JOB}\n")
    frame = build_frame(chunks)
    for rank in range(0, 32, 8):
        finding = Finding(cls, np.array([rank]), explains=1.0, confidence=0.9)
        leaf = ADVICE.leaf(frame, finding, [finding])
        assert leaf is None or leaf.signature.fault in ("slow_python", "slow_preprocessing"), leaf


def frame_with(
    *, metrics: dict[int, dict[str, float]] | None = None, pauses: dict[int, tuple[str, int, float]] | None = None
) -> Frame:
    """Eight workers in steps of 61 ms, rank 2 with what a test gives it."""
    [chunk] = Scene(8, steady(60_000.0, {})).chunks()
    told = [(row, name, value) for row, values in sorted((metrics or {}).items()) for name, value in values.items()]
    paused = sorted((pauses or {}).items())
    chunk = msgspec.structs.replace(
        chunk,
        metrics=MetricColumns(row=[t[0] for t in told], name=[t[1] for t in told], mean=[t[2] for t in told]),
        pauses=PauseColumns(
            row=[row for row, _ in paused],
            what=[p[0] for _, p in paused],
            count=[p[1] for _, p in paused],
            total_us=[p[2] for _, p in paused],
            max_us=[p[2] / p[1] for _, p in paused],
        ),
    )
    return build_frame([chunk])


def value_of(condition: Condition, frame: Frame, rank: int = 2, functions: tuple[str, ...] = ()) -> tuple[float, float] | None:
    finding = Finding("worker", np.array([rank]), explains=1.0, confidence=0.9, functions=list(functions))
    measured = measure(condition, facts_of(frame, finding, [finding]))
    return None if measured is None else (measured.value, measured.expected)


def test_readings_are_compared_with_the_median_of_the_peers_whatever_device_they_are_of() -> None:
    usual = {row: {"0:sm_clock[MHz]": 1900.0 + row, "mlx5_1:nic_link[Gb/s]": 400.0} for row in range(8)}
    usual[2] |= {"0:sm_clock[MHz]": 1000.0, "mlx5_0:nic_link[Gb/s]": 0.0}
    frame = frame_with(metrics=usual)
    assert value_of(Condition(metric="sm_clock", below=Limit(ratio=0.9)), frame) == (1000.0, 1904.0)
    assert value_of(Condition(metric="nic_link", below=Limit(ratio=0.9)), frame) == (0.0, 400.0)
    assert value_of(Condition(metric="nic_link", above=Limit(ratio=0.9)), frame) == (400.0, 400.0)
    assert value_of(Condition(metric="nic", above=Limit(ratio=0.9)), frame) is None
    assert value_of(Condition(metric="absent", above=Limit(value=0)), frame) is None


def test_a_device_is_compared_with_the_peers_device_of_its_name() -> None:
    usual = {row: {"eth0:nic_link[Gb/s]": 0.0, "a:nic_link[Gb/s]": 400.0, "b:nic_link[Gb/s]": 400.0} for row in range(8)}
    usual[2]["b:nic_link[Gb/s]"] = 200.0
    frame = frame_with(metrics=usual)
    assert value_of(Condition(metric="nic_link", below=Limit(ratio=0.75)), frame) == (200.0, 400.0)
    finding = Finding("link", np.array([2]), explains=1.0, confidence=0.9)
    leaf = ADVICE.leaf(frame, finding, [finding])
    assert leaf is not None
    assert (leaf.signature.fault, leaf.evidence[0].metric) == ("nic_halved", "b:nic_link")
    other = Finding("link", np.array([3]), explains=1.0, confidence=0.9)
    assert ADVICE.leaf(frame, other, [other]) is None


@pytest.mark.parametrize(
    ("readings", "fault"),
    [
        ({"sm_clock[MHz]": (1200.0, 1900.0), "throttle_thermal[share]": (0.8, 0.0)}, "slow_gpu_clock.thermal"),
        ({"sm_clock[MHz]": (1200.0, 1900.0), "throttle_power[share]": (0.9, 0.1)}, "slow_gpu_clock.power"),
        ({"sm_clock[MHz]": (1200.0, 1900.0), "gpu_power_limit[W]": (400.0, 700.0)}, "slow_gpu_clock.power"),
        ({"sm_clock[MHz]": (1200.0, 1900.0)}, "slow_gpu_clock"),
        ({"sm_throttle[share]": (0.7, 0.0)}, "slow_gpu_clock"),
        ({"ecc_uncorrected[count]": (2.0, 0.0)}, "gpu_memory_errors"),
        ({"gpu_xid_errors[count]": (1.0, 0.0)}, "gpu_memory_errors"),
        ({"pcie_gen[generation]": (3.0, 5.0)}, "pcie_downgrade"),
        ({"pcie_replays[1/s]": (900.0, 1.0)}, "pcie_downgrade"),
        ({"nvlink_replay_errors[count]": (50.0, 0.0)}, "nvlink_errors"),
        ({"nic_pcie_width[lanes]": (8.0, 16.0)}, "nic_halved"),
        ({"nic_tx_discards[1/s]": (300.0, 0.0)}, "link_loss"),
        ({"nic_rx_pfc_pause[1/s]": (90_000.0, 50.0)}, "pfc_storm"),
        ({"nic_cnp_rx[1/s]": (9_000.0, 100.0)}, "pfc_storm"),
        ({"gpu_foreign_processes[count]": (1.0, 0.0)}, "leftover_process.gpu"),
        ({"cpu_foreign[cores]": (12.0, 0.5), "cpu_busy[share]": (0.5, 0.3)}, "leftover_process.cpu"),
        ({"cpu_busy[share]": (0.99, 0.3)}, "cpu_contention"),
        ({"cpu_steal[share]": (0.2, 0.0)}, "cpu_steal"),
        ({"mem_available[share]": (0.01, 0.5)}, "memory_pressure"),
        ({"io_pressure[share]": (0.5, 0.01)}, "slow_storage"),
        ({"sm_clock[MHz]": (1880.0, 1900.0), "gpu_temperature[C]": (88.0, 62.0)}, None),
        ({"nic_link[Gb/s]": (0.0, 0.0)}, None),
        ({"gpu_temperature[C]": (91.0, 90.0)}, None),
    ],
)
def test_readings_of_a_real_agent_name_the_fault(readings: dict[str, tuple[float, float]], fault: str | None) -> None:
    """Suspect's reading and the peers'; names and units as the samplers write them."""
    frame = frame_with(metrics={row: {n: v[0] if row == 2 else v[1] for n, v in readings.items()} for row in range(8)})
    finding = Finding("worker", np.array([2]), explains=1.0, confidence=0.9)
    leaf = ADVICE.leaf(frame, finding, [finding])
    assert (leaf.signature.fault if leaf is not None else None) == fault


def test_pauses_are_counted_per_step_and_share_of_the_step() -> None:
    frame = frame_with(pauses={2: ("gc", 10, 61_000.0), 3: ("alloc", 1, 6_100.0)})
    gc = Condition(pause="gc", above=Limit(value=0.0))
    assert value_of(gc, frame) == pytest.approx((0.2, 0.0))
    assert value_of(msgspec.structs.replace(gc, of="count"), frame) == pytest.approx((2.0, 0.0))
    assert value_of(msgspec.structs.replace(gc, of="max_ms"), frame) == pytest.approx((6.1, 0.0))
    share, expected = value_of(msgspec.structs.replace(gc, of="pause_share"), frame) or (0.0, 0.0)
    assert share == 1.0
    assert np.isnan(expected)


def slow_in(name: str, stack: str) -> Frame:
    """Rank 2 spends 30 ms a step more in a function than its peers, of 40 ms that it spends more in all."""
    [chunk] = Scene(8, steady(60_000.0, {})).chunks()
    columns = chunk.patterns
    extra = {"beta": 0.3, "mu": 0.5, "sigma": 0.1, "count": 5, "total_us": 150_000.0, "exclusive_us": 150_000.0}
    for function, total in ((1, 150_000.0), (2, 50_000.0)):
        for field in PatternColumns.__struct_fields__:
            given = {
                **extra,
                "row": 2,
                "function": function,
                "total_us": total,
                "exclusive_us": total,
                "p50_us": 10.0,
                "p99_us": 90.0,
            }
            getattr(columns, field).append(given.get(field, 0.0))
    functions = [
        *chunk.functions,
        FunctionName(name=name, category="python", stack=stack),
        FunctionName(name="k", category="compute"),
    ]
    return build_frame([msgspec.structs.replace(chunk, functions=functions)])


def test_functions_are_found_by_name_and_by_frame() -> None:
    frame = slow_in("read", "train.py:main;s3fs/core.py:_cat_file;read")
    for pattern in ("^read$", "s3fs", r"core\.py:_cat"):
        assert value_of(Condition(function=pattern, above=Limit(value=0.5)), frame) == pytest.approx((0.75, np.nan), nan_ok=True)
    assert value_of(Condition(function="main.*s3fs", above=Limit(value=0.5)), frame) == pytest.approx((0.0, np.nan), nan_ok=True)
    step = Condition(function="s3fs", of="step_share", above=Limit(value=0.1))
    assert value_of(step, frame) == pytest.approx((30.0 / 61.0, 0.0))
    assert value_of(msgspec.structs.replace(step, of="time_ms"), frame) == pytest.approx((30.0, 0.0))
    assert (value_of(msgspec.structs.replace(step, of="tail"), frame) or (0, 0))[0] == pytest.approx(9.0)
    assert (value_of(msgspec.structs.replace(step, of="mu"), frame) or (0, 0))[0] == pytest.approx(0.5)
    only_compute = Condition(function=".", category=["compute"], above=Limit(value=0.5))
    assert value_of(only_compute, frame) == pytest.approx((0.25, np.nan), nan_ok=True)


def test_transfer_times_are_the_shortest_of_the_members() -> None:
    frame = build_frame(Scene(8, steady(60_000.0, {2: 2.0})).chunks())
    condition = Condition(communicator="kind0", above=Limit(ratio=1.1))
    assert value_of(condition, frame) == pytest.approx((1.0, 1.0))
    assert value_of(msgspec.structs.replace(condition, communicator="other"), frame) is None
    assert value_of(msgspec.structs.replace(condition, op="all_reduce"), frame) == pytest.approx((1.0, 1.0))
    assert value_of(msgspec.structs.replace(condition, op="all_gather"), frame) is None


@pytest.mark.parametrize(
    ("limit", "value", "expected", "held"),
    [
        ({"above": Limit(ratio=2.0)}, 4.0, 2.0, True),
        ({"above": Limit(ratio=2.0)}, 3.9, 2.0, False),
        ({"above": Limit(ratio=2.0)}, 0.0, 0.0, False),
        ({"above": Limit(ratio=2.0)}, 4.0, float("nan"), False),
        ({"above": Limit(value=1.0)}, 4.0, float("nan"), True),
        ({"above": Limit(value=5.0, ratio=1.0)}, 4.0, 2.0, False),
        ({"above": Limit(difference=2.0)}, 4.0, 2.0, True),
        ({"below": Limit(ratio=0.5)}, 1.0, 2.0, True),
        ({"below": Limit(ratio=0.5)}, 1.1, 2.0, False),
        ({"below": Limit(difference=1.0)}, 1.0, 2.0, True),
        ({"below": Limit(ratio=0.5)}, 1.0, float("nan"), False),
        ({"below": Limit(ratio=0.5)}, 0.0, 0.0, False),
        ({"above": Limit(value=1.0), "below": Limit(value=3.0)}, 2.0, 0.0, True),
        ({"above": Limit(value=1.0), "below": Limit(value=3.0)}, 4.0, 0.0, False),
    ],
)
def test_limits(limit: dict[str, Limit], value: float, expected: float, held: bool) -> None:
    from eroica.localizer.playbook.conditions import Measured

    assert holds(Condition(metric="x", **limit), Measured(value, expected, "1")) is held


GOOD = """
actions:
  - {id: ask_bob, kind: check, text: ask Bob, first: find Bob, who: Bob}
signatures:
  - fault: our_cache
    about: our own cache is cold
    classes: [worker]
    all:
      - {function: our_cache, above: {value: 0.5}}
    prefer: 90
    action: ask_bob
    remedies:
      - {id: our.warm, text: warm it}
"""


def test_a_folder_adds_to_the_built_in_playbook_and_replaces_what_has_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "ours.yaml").write_text(GOOD)
    (tmp_path / "notes.txt").write_text("not a playbook")
    (tmp_path / "z.yaml").write_text(
        "signatures:\n  - {fault: pin_memory, about: ours, classes: [worker], action: watch,\n"
        "     all: [{metric: x, above: {value: 1}}]}\n"
    )
    book, built_in = load_playbook(str(tmp_path)), load_playbook()
    assert book.problems == ()
    assert len(book.signatures) == len(built_in.signatures) + 1
    assert book.signature("pin_memory").about == "ours"  # type: ignore[union-attr]
    assert book.digest != built_in.digest
    frame = slow_in("get", "our_cache.py:get")
    finding = Finding("worker", np.array([2]), explains=1.0, confidence=0.9)
    advice = Advice(book, counts={"our.warm": (3, 1)})
    leaf = advice.leaf(frame, finding, [finding])
    action = advice.action("worker", leaf)
    assert (action.playbook, action.name, action.who) == ("our_cache", "ask_bob", "Bob")
    assert [(r.id, r.helped, r.did_not_help) for r in action.remedies] == [("our.warm", 3, 1)]


S = "signatures:\n  - {fault: f, about: a, classes: [worker], action: watch,\n     all: ["
E = "]}\n"


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("signatures:\n  - fault: x\n   - broken: [", 3, "not YAML"),
        ("signatures: 5\n", 1, "signatures: Expected `array`"),
        ("signatures:\n- fault: f\n  about: a\n  colour: red\n", 4, "unknown field `colour`"),
        ("signatures:\n- fault: f\n  fault: g\n", 3, "twice"),
        (f"{S}{{metric: x, above: {{value: lots}}}}{E}", 3, "signatures[0].all[0].above.value"),
        (f"{S}{{metric: x, function: y, above: {{value: 1}}}}{E}", 3, "exactly one of"),
        (f"{S}{{metric: x}}{E}", 3, "above or below"),
        (f"{S}{{metric: x, above: {{}}}}{E}", 3, "value, ratio or difference"),
        (f"{S}{{metric: x, of: time_ms, above: {{value: 1}}}}{E}", 3, "one can measure reading"),
        (f"{S}{{function: x, above: {{ratio: 2}}}}{E}", 3, "no peers"),
        (f"{S}{{function: '(a+)+', above: {{value: 1}}}}{E}", 3, "repeated"),
        (f"{S}{{function: '(', above: {{value: 1}}}}{E}", 3, "regular expression"),
        (f"{S}{E}", 2, "needs a condition"),
        (f"{S}{{metric: x, above: {{value: 1}}}}{E}".replace("watch", "nothing_known"), 0, "no action 'nothing_known'"),
        (f"{S}{{metric: x, above: {{value: 1}}}}{E}".replace("[worker]", "[gremlins]"), 2, "signatures[0].classes[0]"),
        (f"{S}{{metric: x, above: {{value: 1}}}}{E}".replace("fault: f", "fault: 'F 1'"), 2, "signatures[0].fault"),
        ("a: &a [1]\nb: [*a, *a]\n", 2, "aliases"),
        ("a: " + "[" * 500 + "]" * 500, 0, ""),
        ("\x00", 0, "not YAML"),
        ("signatures:\n- !!python/object/apply:os.system ['true']\n", 0, ""),
        ("defaults: {worker: 2020-01-01}\n", 1, "defaults"),
    ],
)
def test_a_file_that_is_wrong_is_named_with_line_and_key_and_the_rest_goes_on(
    tmp_path: Path, text: str, line: int, says: str
) -> None:
    (tmp_path / "a.yaml").write_text(text)
    (tmp_path / "b.yaml").write_text(GOOD)
    book = load_playbook(str(tmp_path))
    [problem_] = book.problems
    assert problem_.startswith(f"{tmp_path / 'a.yaml'}{f':{line}:' if line else ''}")
    assert says in problem_
    assert book.signature("our_cache") is not None
    assert book.signature("pin_memory") is not None
    with pytest.raises(InvalidInput):
        if says.startswith("no action"):
            raise InvalidInput("found only beside the built-in actions")
        read_file(tmp_path / "a.yaml")


def test_a_folder_that_is_not_there_leaves_the_built_in_playbook(tmp_path: Path) -> None:
    book = load_playbook(str(tmp_path / "gone"))
    assert "gone" in book.problems[0]
    assert book.digest == load_playbook().digest


@pytest.mark.parametrize(
    "pattern", ["(a*)*", "(a|b)+", "(?=a)", "(?P<x>a)", r"(a)\1", "a*b*c*", "(a*b*)c*", "[a", "(a){2,}", "x" * 5 + "*a*b*"]
)
def test_patterns_that_could_run_away_are_refused(pattern: str) -> None:
    assert problem(pattern)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [(r"queues?\.py.*get", "queue.py(171): get"), ("a*b|c*d|e*f", "ddd"), (r"[*+]\(", "*("), ("(x|y)z?", "y")],
)
def test_patterns_that_cannot_are_not(pattern: str, text: str) -> None:
    assert problem(pattern) == ""
    assert found(pattern, text)


def test_the_built_in_playbook_is_whole() -> None:
    book: Playbook = load_playbook()
    assert set(book.defaults) == set(get_args(CauseClass))
    assert {path.suffix for path in BUILT_IN.iterdir()} == {".yaml"}
    ids = [remedy.id for owner in (*book.signatures, *book.actions.values()) for remedy in owner.remedies]
    assert len(ids) == len(set(ids)), "a remedy's id is what feedback is counted under"
    for cls in get_args(CauseClass):
        assert ADVICE.action(cls, None).remedies, f"{cls} offers nothing that feedback could be about"
    for signature in book.signatures:
        assert book.remedies(signature.classes[0], signature), signature.fault

"""Scenario files: what is accepted, what is refused and how it is said."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import yaml
from jsonschema import Draft202012Validator

import eroica.simulator
from eroica.schemas.errors import InvalidInput, UsageError
from eroica.schemas.ranks import format_ranks
from eroica.simulator.faults import FAULTS
from eroica.simulator.fileschema import scenario_schema
from eroica.simulator.hangs import HANGS
from eroica.simulator.messages import Emission
from eroica.simulator.scenario import Noise, Scenario
from eroica.simulator.simulation import Simulation
from eroica.simulator.source import Source, load_scenario, parse_scenario

pytestmark = pytest.mark.unit

GALLERY = sorted((Path(next(iter(eroica.simulator.__path__))) / "scenarios").glob("*.yaml"))


def test_an_empty_file_is_a_healthy_job() -> None:
    assert parse_scenario("").faults == []


def test_assignments_beat_the_file_and_reach_into_lists() -> None:
    text = "job: {world: 8}\nfaults: [{fault: slow_hbm, dose: 1.3}]"
    scenario = parse_scenario(text, ("faults.0.dose=1.5", "job.sizes.tp=2", "job.framework=megatron"))
    assert scenario.faults[0].dose == 1.5
    assert scenario.job.sizes == {"tp": 2}
    assert scenario.job.world == 8


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("job: {wrld: 8}", "wrld"),
        ("job: {world: 0}", "job.world"),
        ("job: {world: 99999999999}", "job.world"),
        ("faults: [{fault: slow_hbm, dose: 0.9}]", "dose"),
        ("faults: [{fault: slow_hbm, dose: .nan}]", "dose"),
        ("faults: [{fault: slow_hbm, dose: .inf}]", "dose"),
        ("noise: loud", "noise: "),
        ("nuisance: {missing: 1.5}", "missing"),
        ("profile: {steps: 100000}", "steps"),
        ("[1, 2]", "table"),
        ("a: &a [1]\nb: *a", "aliases"),
        ("x: {", "not YAML"),
        ("!!python/object/apply:os.system ['true']", "not YAML"),
    ],
)
def test_what_is_wrong_is_named(text: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=None) as caught:
        parse_scenario(text)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("name: x\njob:\n  world: 8\n  wrld: 3", 4, "job.wrld: there is no field 'wrld'. did you mean world?"),
        ("faults:\n  - {fault: nic_down}\n  - fault: slow_hbm\n    dose: -1", 4, "faults.1.dose: it has to be above 1"),
        ("cluster:\n  other_speed:\n    A100: 0", 2, "cluster.other_speed"),
        ("job: {}\nseed: 1\njob: {}", 3, "'job' stands here twice"),
        ("a: &x 1\nb: *x", 2, "aliases are not allowed"),
        ("job: [1\n  : 3", 2, "not YAML"),
        ("\n\nnoise: quite", 3, "noise: 'quite' is not a known value. did you mean quiet?"),
        ("jbo: {}", 1, "did you mean job?"),
        ("job:\n  world: eight", 2, "job.world: this has to be a whole number, and is a text"),
        ("job:\n  name: x\nfaults: {}", 3, "faults: this has to be a list, and is a table of fields"),
        ("faults:\n  - dose: 2", 2, "faults.0: the field 'fault' is missing"),
    ],
)
def test_the_line_of_what_is_wrong_is_named(text: str, line: int, says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_scenario(text, where="job.yaml")
    assert f"job.yaml, line {line}" in str(caught.value)
    assert says in str(caught.value)


@pytest.mark.parametrize("assignment", ["job", "=1", "job..world=3", "name.x=1", "faults.0.dose=2"])
def test_a_wrong_assignment_is_wrong_use(assignment: str) -> None:
    with pytest.raises(UsageError):
        parse_scenario("name: x\nfaults: []", (assignment,))


@pytest.mark.parametrize(
    "text",
    [
        "faults: [{fault: no_such_fault}]",
        "faults: [{fault: slow_hbm, dose: 1.3, strength: 2}]",
        "faults: [{fault: slow_hbm, at: {ranks: '99'}}]",
        "faults: [{fault: slow_hbm, at: {hosts: '9'}}]",
        "faults: [{fault: stage_imbalance, dose: 1.3}]",
        "faults: [{fault: nvlink_down, dose: 1.3, at: {ranks: '1'}}]\njob: {world: 16, framework: ddp}",
        "faults: [{fault: hang_before, dose: 1.3}]",
        "faults: [{fault: hang_before}, {fault: slow_hbm}]",
        "faults: [{fault: link_loss, at: {hosts: '0'}}]",
        "job: {world: 12, framework: megatron, sizes: {tp: 8}}",
        "job: {framework: caffe}",
        "job: {world: 4, framework: custom}",
        "job: {world: 4, framework: custom, coordinates: {dp: [0, 1, 2]}}",
        "job: {world: 2, framework: custom, coordinates: {dp: [0, 0]}}",
        "job: {world: 2, framework: custom, coordinates: {dp: [0, 1]}, sizes: {tp: 2}}",
        "job: {world: 3, framework: custom, coordinates: {pp: [0, 0, 1], dp: [0, 1, 0]}}",
        "job: {world: 16, framework: megatron, sizes: {pp: 4}, model: {stage_scale: [1, 2]}}",
        "cluster: {other_devices: {'7': A100}}",
        "seed: -1",
        "start: yesterday\nfaults: []",
    ],
)
def test_what_cannot_be_simulated_is_said_with_file_and_line(text: str) -> None:
    source = Source(text, where="job.yaml")
    with pytest.raises(InvalidInput, match=r"^job\.yaml, line [12]: "), source.placing():
        Emission(Simulation(source.scenario()))


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("faults:\n  - fault: slow_gpu", 2, "faults.0.fault: 'slow_gpu' is not a known fault. did you mean slow_gpu_clock?"),
        ("job:\n  framework: megatorn", 2, "job.framework: 'megatorn' is not a known framework. did you mean megatron?"),
        ("job:\n  framework: megatron\n  sizes: {ttp: 2}", 3, "job.sizes: megatron has no option 'ttp'. did you mean tp?"),
        ("job:\n  schedule: gpip", 2, "job.schedule: 'gpip' is not a known schedule. did you mean gpipe?"),
        (
            "faults:\n  - fault: slow_hbm\n    at:\n      hosts: 9",
            4,
            "faults.0.at.hosts: there is no host 9. the job has 2 hosts",
        ),
        ("faults:\n  - fault: slow_hbm\n  - {fault: slow_hbm, at: {stages: [3]}}", 3, "faults.1.at.stages: there is no stage 3"),
        ("faults:\n  - {fault: hang_before, at: {ranks: x}}", 2, "faults.0.at.ranks"),
    ],
)
def test_what_contradicts_the_job_is_placed_too(text: str, line: int, says: str) -> None:
    source = Source(text, where="job.yaml")
    with pytest.raises(InvalidInput) as caught, source.placing():
        Simulation(source.scenario())
    assert str(caught.value).startswith(f"job.yaml, line {line}: {says}")


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("jbo.world=8", "did you mean job?"),
        ("job.wrld=8", "did you mean world?"),
        ("noise=quite", "did you mean quiet?"),
        ("job.world=few", "this has to be a whole number"),
        ("job.world={", "not YAML"),
        ("job.sizes.tp=3", "cannot be divided"),
        ("job.world=4", "faults.0.at.ranks: there is no rank 7. the job has 4 ranks"),
        ("faults.0.fault=slow_gpu", "did you mean slow_gpu_clock?"),
    ],
)
def test_an_assignment_to_blame_is_wrong_use(assignment: str, says: str) -> None:
    text = "job: {world: 8, framework: megatron}\nfaults: [{fault: slow_hbm, at: {ranks: 7}}]"
    with pytest.raises(UsageError) as caught:
        source = Source(text, (assignment,), "job.yaml")
        with source.placing():
            Simulation(source.scenario())
    assert str(caught.value).startswith(f"--set {assignment}: ")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("place", "ranks"),
    [
        ("hosts: 2", "16-23"),
        ("hosts: '2-3'", "16-31"),
        ("hosts: 2-3", "16-31"),
        ("hosts: 0", "0-7"),
        ("ranks: 5", "5"),
        ("ranks: '5,9'", "5,9"),
        ("racks: 1", "32-63"),
    ],
)
def test_places_are_ranges_or_a_bare_number(place: str, ranks: str) -> None:
    scenario = parse_scenario(f"job: {{world: 64}}\nfaults: [{{fault: slow_hbm, at: {{{place}}}, strength: 1}}]")
    [placed] = Simulation(scenario).faults
    assert format_ranks(np.flatnonzero(placed.ranks)) == ranks


@pytest.mark.parametrize(
    ("place", "says"), [("ranks: '9-5'", "at.ranks"), ("hosts: 99", "at.hosts: there is no host 99"), ("hosts: x", "at.hosts")]
)
def test_a_place_that_cannot_be_is_named(place: str, says: str) -> None:
    scenario = parse_scenario(f"job: {{world: 64}}\nfaults: [{{fault: slow_hbm, at: {{{place}}}, strength: 1}}]")
    with pytest.raises(InvalidInput, match=says):
        Simulation(scenario)


@pytest.mark.parametrize("path", GALLERY, ids=lambda p: p.stem)
def test_the_gallery_is_readable_and_says_what_it_is(path: Path) -> None:
    scenario = load_scenario(path)
    assert scenario.name == path.stem
    assert scenario.about


def test_a_file_that_is_not_there_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        load_scenario(tmp_path / "nothing.yaml")


def _floats(kind: type, place: str = "") -> list[str]:
    """Every field of a scenario that is a number with a fraction."""
    found: list[str] = []
    for field in msgspec.structs.fields(kind):
        name = f"{place}{field.name}"
        if isinstance(field.default, msgspec.Struct):
            found += _floats(type(field.default), name + ".")
        elif isinstance(field.default, float):
            found.append(name)
    return found


FLOATS = [*_floats(Scenario), *_floats(Noise, "noise."), "faults.0.dose", "faults.0.strength", "cluster.other_speed.x"]


@pytest.mark.parametrize("field", FLOATS)
def test_every_number_is_finite(field: str) -> None:
    text = "noise: {}\nfaults: [{fault: slow_gpu_clock}]\n"
    for wrong in (".inf", "-.inf", ".nan", "'inf'", "'nan'", "1.0e+300", "1" + "0" * 40):
        with pytest.raises(UsageError, match=field.rpartition(".")[2] if "other" not in field else "other_speed"):
            parse_scenario(text, [f"{field}={wrong}"])


@pytest.mark.parametrize(
    "assignment", ["seed=-1", "profile.deadline_ms=99999999999", "job.micro_batches=100001", "job.chunks=1.0e+300"]
)
def test_whole_numbers_have_bounds_too(assignment: str) -> None:
    with pytest.raises(UsageError):
        parse_scenario("", [assignment])


@pytest.mark.parametrize("path", GALLERY, ids=lambda path: path.stem)
def test_the_gallery_keeps_to_the_published_schema(path: Path) -> None:
    validator = Draft202012Validator(scenario_schema())
    validator.check_schema(validator.schema)
    given = yaml.safe_load(path.read_text(encoding="utf-8"))
    validator.validate(given)
    assert not validator.is_valid(given | {"seed": "one"})
    assert not validator.is_valid(given | {"faults": [{"fault": "slow_gpu"}]})
    assert not validator.is_valid(given | {"job": {"schedule": "1f2b"}})


def test_the_published_schema_says_what_every_field_means() -> None:
    schema = scenario_schema()
    fields = [(part, name, field) for part, body in schema["$defs"].items() for name, field in body["properties"].items()]
    silent = [f"{part}.{name}" for part, name, field in fields if "description" not in field]
    assert silent == []
    assert {choice["const"] for choice in schema["$defs"]["Fault"]["properties"]["fault"]["oneOf"]} == {*FAULTS, *HANGS}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("faults: [{fault: slow_hbm}]", "faults: [{fault: pcie_downgrade}]", False),
        ("job: {world: 8}", "job: {world: 16}", False),
        ("seed: 1", "seed: 2", False),
        ("start: '2026-01-02T00:00:00Z'", "start: '2026-01-03T00:00:00Z'", False),
        ("job: {sizes: {tp: 2, pp: 2}, framework: megatron}", "job: {framework: megatron, sizes: {pp: 2, tp: 2}}", True),
        ("noise: production", "", True),
    ],
)
def test_scenarios_without_a_name_are_the_same_launch_only_if_they_say_the_same(one: str, other: str, same: bool) -> None:
    ids = {Simulation(parse_scenario(text)).run_id for text in (one, other)}
    assert len(ids) == (1 if same else 2)


def test_a_seed_of_the_command_line_is_as_good_as_one_in_the_file() -> None:
    assert Simulation(parse_scenario(""), seed=7).run_id == Simulation(parse_scenario("seed: 7")).run_id

"""``eroica tune`` keeps what no point beats, holds the choice against unseen jobs, and says what is wrong with its input."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eroica.cli.main import main
from eroica.offline.labels import read_label
from eroica.offline.score import Score
from eroica.offline.tune_search import CONFIDENCES, Tried, choose, folds, front, outcome, search
from eroica.offline.tune_space import RANGES, Range, Space, latin_hypercube, space_of
from eroica.schemas.errors import InvalidInput, UsageError
from eroica.schemas.settings import LocalizeSettings, load_settings

pytestmark = pytest.mark.unit


def _score(found: int, of: int, *, accused: bool = False, right: bool = False, waiter: bool = False) -> Score:
    return Score("eroica", "worker" if of else "healthy", "", accused, right, right, found, of, waiter, 0.9)


FOUND, MISSED = _score(1, 1, accused=True, right=True), _score(0, 1)
WRONG, QUIET, FALSE = _score(0, 1, accused=True), _score(0, 0, right=True), _score(0, 0, accused=True)


def test_what_counts_as_false() -> None:
    result = outcome([FOUND, MISSED, WRONG, QUIET, FALSE, _score(1, 1, accused=True, right=True, waiter=True)])
    assert (result.recall, result.right, result.false) == (2 / 4, 2 / 4, 3 / 6)
    assert (result.faulty, result.healthy) == (4, 2)


def test_the_front_holds_what_nothing_beats() -> None:
    bold = Tried({"x": 1}, [FOUND, FOUND, FALSE])
    beaten = Tried({"x": 2}, [FOUND, MISSED, FALSE])
    shy = Tried({"x": 3}, [FOUND, MISSED, QUIET])
    again = Tried({"x": 4}, [MISSED, FOUND, QUIET])
    assert front([bold, beaten, shy, again]) == [shy, bold]
    assert front([bold, beaten, shy, again], [0, 1]) == [bold]
    assert choose([bold, beaten, shy], 0.0) is shy
    assert choose([bold, beaten, shy], 0.5) is bold
    assert choose([bold, beaten], 0.0) is bold


def test_folds_never_split_a_job() -> None:
    jobs = ["a"] * 5 + ["b"] * 2 + ["c", "d", "e"]
    parts = folds(jobs, 3, seed=7)
    assert sorted(i for part in parts for i in part) == list(range(10))
    assert sum(len({jobs[i] for i in part}) for part in parts) == 5
    assert parts == folds(jobs, 3, seed=7)
    assert [len(p) for p in folds(["a", "b"], 9, seed=1)] == [1, 1]
    with pytest.raises(UsageError, match="one job"):
        folds(["a", "a"], 2, seed=1)


def test_a_latin_hypercube_has_one_point_a_slice() -> None:
    unit = latin_hypercube(np.random.default_rng(3), 8, 3)
    assert [sorted((column * 8).astype(int)) for column in unit.T] == [list(range(8))] * 3


@pytest.mark.parametrize("bounds", [Range(2.5, 6.0), Range(0.01, 0.08), Range(0.0, 1.0), Range(3.0, 3.0)])
def test_a_range_maps_to_the_unit_and_back(bounds: Range) -> None:
    for unit in (0.0, 0.25, 0.5, 1.0):
        value = bounds.value(unit)
        assert bounds.low <= value <= bounds.high
        assert bounds.low == bounds.high or bounds.unit(value) == pytest.approx(unit, abs=2e-3)
    assert bounds.unit(bounds.low - 1) == 0.0
    assert Range(0.01, 0.09).value(0.5) == 0.03, "several times apart: equal steps are equal ratios"


@pytest.mark.parametrize("rules", RANGES)
def test_every_default_lies_inside_and_every_end_is_allowed(rules: Any) -> None:
    settings = LocalizeSettings(rules=rules)
    for name, bounds in space_of(settings).ranges.items():
        assert bounds.low <= getattr(settings, name) <= bounds.high
        assert LocalizeSettings(**{name: bounds.low}) != LocalizeSettings(**{name: bounds.high})


def searched(points: int, seed: int = 1, space: Space | None = None) -> tuple[list[Tried], list[str], int]:
    """A search in which only outlier_z decides: the culprit is found below 4.25, and somebody is accused falsely below 3."""
    calls = []

    def judge(at: LocalizeSettings, confidences: Any) -> list[list[Score]]:
        calls.append(at)
        return [[FOUND if at.outlier_z < 4.25 else MISSED, FALSE if at.outlier_z < 3 else QUIET] for _ in confidences]

    settings = LocalizeSettings(outlier_z=6.0)
    found = search(settings, space or space_of(settings), judge, points, seed)
    return found.tried, found.idle, len(calls)


@pytest.mark.parametrize("points", [1, 2, 7, 14, 15, 30, 60])
def test_the_budget_holds_and_no_point_is_judged_twice(points: int) -> None:
    tried, _, calls = searched(points)
    assert calls == points
    assert len({tuple(one.point.items()) for one in tried}) == len(tried) == points * len(CONFIDENCES)
    assert all(2.5 <= one.point["outlier_z"] <= 6 and 0.01 <= one.point["min_effect"] <= 0.08 for one in tried)


def test_what_decides_nothing_is_left_alone_and_the_rest_is_found() -> None:
    tried, idle, _ = searched(30)
    assert idle == ["min_effect", "mad_floor_ratio"]
    moved = [one.point for one in tried if one.point["min_effect"] != 0.03]
    assert len(moved) == 2 * len(CONFIDENCES), "both ends of its range"
    [best, *_] = front(tried)
    assert best.outcome().recall == 1 and best.outcome().false == 0


def test_a_seed_gives_its_search_again() -> None:
    assert [one.point for one in searched(30, 3)[0]] == [one.point for one in searched(30, 3)[0]]
    assert [one.point for one in searched(30, 3)[0]] != [one.point for one in searched(30, 4)[0]]


def test_a_search_ends_where_there_is_nothing_left_to_try() -> None:
    tried, _, calls = searched(50, space=Space({"outlier_z": Range(5.0, 5.0)}))
    assert calls == 2
    assert {one.point["outlier_z"] for one in tried} == {5.0, 6.0}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("outlier=3:5", "did you mean outlier_z?"),
        ("guide_z=3:5", "thresholds of the rules eroica: outlier_z"),
        ("outlier_z=5:3", "above the upper one"),
        ("outlier_z=a:b", "no bounds"),
        ("outlier_z=-1:3", "no bounds"),
        ("outlier_z=", "no bounds"),
    ],
)
def test_a_range_that_cannot_be_is_refused(asked: str, says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)) as caught:
        space_of(LocalizeSettings(), [asked])
    assert caught.value.where == f"--range {asked}"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("broken", "a label is 'healthy' or a mapping"),
        ({"class": "gremlin"}, "no class of causes"),
        ({"class": "worker"}, "does not say which"),
        ({"class": "worker", "ranks": "two"}, "not a rank"),
        ({"class": "pipeline_stage", "stages": ["last"]}, "not the number of a stage"),
        ({"job": "a"}, "names no cause"),
        ({"clas": "worker"}, "unknown in a label: clas"),
        ({"causes": "worker"}, "names no cause"),
    ],
)
def test_a_label_that_says_nothing_is_refused(value: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says) as caught:
        read_label(value, "labels.yaml: run-1")
    assert caught.value.where == "labels.yaml: run-1"


@pytest.mark.parametrize("value", [{"class": "worker", "ranks": 2}, {"causes": [{"class": "worker", "ranks": ["2"]}]}])
def test_forms_of_a_label(value: Any) -> None:
    label = read_label({**value, "job": "j"}, "")
    assert label.truth["causes"][0]["suspects"]["ranks"] == "2"
    assert (label.job, label.healthy) == ("j", False)
    assert read_label("healthy", "").healthy


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two jobs, each with a slow rank, each healthy."""
    root = tmp_path_factory.mktemp("matrix")
    for world in (8, 12):
        for name, faults in (("slow", "[{fault: slow_gpu_clock, at: {ranks: '2'}, dose: 1.3}]"), ("well", "[]")):
            scenario = root / "scenario.yaml"
            scenario.write_text(
                f"name: {name}\njob: {{name: job-{world}, world: {world}}}\nfaults: {faults}\nhistory: {{before: 0, after: 0}}\n"
            )
            assert main(["simulate", str(scenario), "--seed", "3", "--out", str(root / f"{name}-{world}")]) == 0
    (root / "scenario.yaml").unlink()
    return root


def test_a_tiny_matrix_is_tuned(matrix: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    words = ["tune", str(matrix), "--points", "3", "--folds", "2", "--seed", "4"]
    capsys.readouterr()
    assert main([*words, "--out", str(tmp_path / "one")]) == 0
    assert "→ recall 1.000, false 0.0000: outlier_z 3.5" in capsys.readouterr().out
    assert main([*words, "--out", str(tmp_path / "two"), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["chosen"] for line in lines].count(True) == 1
    report = (tmp_path / "one" / "report.md").read_text()
    assert "4 labelled cases of 2 jobs, 2 with a fault; 15 points tried, seed 4" in report
    assert "| 1 | job-12 of 12 | 2 |" in report or "| 1 | job-8 of 8 | 2 |" in report
    for name in ("report.md", "settings.toml"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    monkeypatch.setenv("EROICA_CONFIG", str(tmp_path / "one" / "settings.toml"))
    chosen = next(line["point"] for line in lines if line["chosen"])
    assert load_settings().localize == LocalizeSettings(**chosen)


@pytest.mark.parametrize(("rules", "name"), [("paper", "mad_factor"), ("guide", "guide_z")])
def test_other_rules_have_thresholds_of_their_own(matrix: Path, tmp_path: Path, rules: str, name: str, capsys: Any) -> None:
    words = ["tune", str(matrix), "--points", "4", "--folds", "2", "--set", f"localize.rules={rules}"]
    assert main([*words, "--out", str(tmp_path), "--range", f"{name}=3:4"]) == 0
    written = (tmp_path / "settings.toml").read_text()
    assert f'rules = "{rules}"' in written and f"{name} = " in written
    assert f"{name} 3 to 4" in (tmp_path / "report.md").read_text()


def test_a_wrong_label_shows_as_false_accusation(matrix: Path, tmp_path: Path, capsys: Any) -> None:
    labels = tmp_path / "labels.yaml"
    labels.write_text(f"{matrix}/slow-8: {{class: worker, ranks: 5, job: other}}\n")
    capsys.readouterr()
    words = [str(matrix), "--labels", str(labels), "--points", "1", "--folds", "3", "--json"]
    assert main(["tune", *words]) == 0
    [first, *rest] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert first["recall"] == 0.5
    assert all(line["false"] > 0 for line in [first, *rest])


@pytest.mark.parametrize(
    ("labels", "words", "code", "says"),
    [
        ("", ["--json"], 3, "maps folders to labels"),
        ("[1, 2", ["--json"], 3, "neither YAML nor JSON"),
        ("elsewhere: healthy", ["--json"], 2, "labelled, but not given: elsewhere"),
        ("{}", [], 2, "the report needs a folder"),
        ("{}", ["--json", "--range", "guide_z=2:3"], 2, "no threshold that is searched"),
        ("{}", ["--json", "missing-folder"], 2, "there is no such folder"),
    ],
)
def test_bad_use_is_told(matrix: Path, tmp_path: Path, labels: str, words: list[str], code: int, says: str, capsys: Any) -> None:
    path = tmp_path / "labels.yaml"
    path.write_text(labels)
    assert main(["tune", str(matrix), "--labels", str(path), *words]) == code
    assert says in " ".join(capsys.readouterr().err.split())


def test_a_folder_without_a_label_is_named(matrix: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "bare").mkdir()
    assert main(["tune", str(matrix), str(tmp_path / "bare"), "--json"]) == 2
    assert "nobody says what is wrong here" in capsys.readouterr().err
    assert main(["tune", str(matrix / "slow-8"), "--json"]) == 2
    assert "both are needed" in capsys.readouterr().err

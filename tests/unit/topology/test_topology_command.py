from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from eroica.cli.topology import register
from eroica.schemas.errors import EroicaError, InvalidInput, UsageError

pytestmark = pytest.mark.unit


def run(*args: str) -> Any:
    app = typer.Typer()
    register(app)
    result = CliRunner().invoke(app, list(args))
    if isinstance(result.exception, EroicaError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_json_lists_all_groups_by_kind() -> None:
    out = json.loads(run("--framework", "megatron", "--world", "8", "--tp", "2", "--pp", "2", "--json"))
    assert out["groups"]["dense.tp"] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert out["groups"]["dense.pp"] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert out["sizes"]["dp"] == 2


def test_json_of_a_rank_holds_its_groups_and_place() -> None:
    out = json.loads(
        run("--framework", "torchtitan", "--world", "16", "--pp", "2", "--tp", "2", "--dp-shard", "4", "--rank", "9", "--json")
    )
    assert out["coordinates"] == {"pp": 1, "dp_replicate": 0, "dp_shard": 0, "cp": 0, "tp": 1, "efsdp": 1, "ep": 0}
    assert out["groups"]["dense.tp"] == [[8, 9]]
    assert out["peers"] == "8,10-15"
    assert (out["host"], out["rail"], out["stages"]) == (1, 1, [1])


def test_options_of_other_frameworks() -> None:
    out = json.loads(run("--framework", "deepspeed-moe", "--world", "8", "--ep", "2", "--use-data-before-expert", "--json"))
    assert out["groups"]["edp"] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    out = json.loads(run("--framework", "megatron", "--world", "8", "--pp", "2", "--order", "tp-cp-ep-pp-dp", "--json"))
    assert out["groups"]["dense.pp"][0] == [0, 1]
    out = json.loads(run("--framework", "hsdp", "--world", "8", "--dp-replicate", "2", "--json"))
    assert out["groups"]["dp_replicate"][0] == [0, 4]


def test_custom_coordinates_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "coordinates.json"
    file.write_text('{"pp": [0, 0, 1, 1], "dp": [0, 1, 0, 1]}', encoding="utf-8")
    out = json.loads(run("--framework", "custom", "--coordinates", str(file), "--json"))
    assert out["groups"] == {"pp": [[0, 2], [1, 3]], "dp": [[0, 1], [2, 3]]}


def test_stages_of_a_folded_pipeline_and_the_mapping_of_dp_and_pp() -> None:
    folded = ["--framework", "torchtitan", "--world", "8", "--pp", "4", "--placement", "v", "--rank", "2", "--json"]
    assert json.loads(run(*folded))["stages"] == [1, 6]
    looped = ["--framework", "megatron", "--world", "4", "--pp", "4", "--vpp", "2", "--rank", "1", "--json"]
    assert json.loads(run(*looped))["stages"] == [1, 5]
    mapped = json.loads(run("--framework", "megatron", "--world", "8", "--pp", "2", "--use-tp-pp-dp-mapping", "--json"))
    assert mapped["groups"]["dense.pp"][0] == [0, 1]
    assert mapped["order"] == "tp-cp-ep-pp-dp"


def test_people_see_the_stages_of_a_folded_pipeline() -> None:
    text = run("--framework", "torchtitan", "--world", "8", "--pp", "4", "--placement", "v", "--rank", "5")
    assert "pp 2: stages 2, 5" in text
    assert "holds stages 2, 5; its 1 peer shares its pipeline stages" in text.replace("\n", " ")


def test_people_see_stages_and_group_kinds() -> None:
    text = run("--framework", "megatron", "--world", "8", "--tp", "2", "--pp", "2", "--rank", "5")
    assert "pp 1" in text
    assert "dense.tp" in text
    assert "rank 5: pp 1, dp 0, cp 0, tp 1" in text


@pytest.mark.parametrize(
    ("args", "error", "says"),
    [
        (["--framework", "megatron"], UsageError, "world size is missing"),
        (["--framework", "nonesuch", "--world", "8"], UsageError, "not a known framework"),
        (["--framework", "megatron", "--world", "8", "--tp", "3"], UsageError, "cannot be divided"),
        (["--framework", "ddp", "--world", "8", "--tp", "2"], UsageError, "no option 'tp'"),
        (["--framework", "ddp", "--world", "8", "--rank", "8"], UsageError, r"outside of 0\.\.7"),
        (
            ["--framework", "megatron", "--world", "8", "--cp", "2", "--order", "tp-dp-pp"],
            UsageError,
            "leaves out cp, whose size is 2",
        ),
        (["--framework", "megatron", "--world", "8", "--tp", "2", "--dp", "2"], UsageError, "dp is given as 2, but the other"),
        (["--framework", "megatron", "--world", "8", "--pp", "2", "--placement", "w"], UsageError, "not a placement"),
        (["--framework", "megatron", "--world", "8", "--vpp", "3", "--placement", "v"], UsageError, "exactly two stages"),
        (["--framework", "megatron", "--world", "8", "--vpp", "1000000"], UsageError, "use 1 to 1024"),
        (["--framework", "ddp", "--world", "8", "--placement", "v"], UsageError, "no option 'placement'"),
        (
            ["--framework", "megatron", "--world", "8", "--order", "tp-dp-pp", "--use-tp-pp-dp-mapping"],
            UsageError,
            "is the order",
        ),
        (["--framework", "custom"], UsageError, "needs its coordinates"),
        (["--framework", "ddp", "--world", "8", "--coordinates", "x"], UsageError, "custom only"),
    ],
)
def test_wrong_use(args: list[str], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        run(*args)


@pytest.mark.parametrize("text", ["", "[1]", '{"pp": ["a"]}', '{"pp": [99999999999999999999]}', "\xff"])
def test_broken_coordinate_files(tmp_path: Path, text: str) -> None:
    file = tmp_path / "c.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidInput, match=r"c\.json"):
        run("--framework", "custom", "--coordinates", str(file))


def test_an_absent_coordinate_file() -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        run("--framework", "custom", "--coordinates", "/nonexistent/c.json")

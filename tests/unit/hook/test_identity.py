from __future__ import annotations

from typing import Any

import pytest

from eroica.producers.hook import groups, identity

pytestmark = pytest.mark.unit

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "TORCHELASTIC_RUN_ID": "run7",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RESTART_COUNT": "0",
}
SLURM = {
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "16",
    "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
}
SBATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "16", "SLURM_JOB_ID": "4711"}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prte-12@1",
}
HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "2"}

PLACES: list[tuple[str, dict[str, str], tuple[str, int, int, int]]] = [
    ("nothing", {}, ("none", 0, 1, 0)),
    ("torchrun", TORCHRUN, ("torchrun", 5, 8, 1)),
    ("plain variables", {"RANK": "1", "WORLD_SIZE": "2"}, ("env", 1, 2, 0)),
    ("srun", SLURM, ("slurm", 9, 16, 1)),
    ("sbatch without srun is one process", SBATCH, ("none", 0, 1, 0)),
    ("torchrun under srun", {**SLURM, **TORCHRUN}, ("torchrun", 5, 8, 1)),
    ("mpirun", OPENMPI, ("openmpi", 3, 4, 1)),
    ("mpirun in an allocation", {**SBATCH, **OPENMPI}, ("openmpi", 3, 4, 1)),
    ("hydra", HYDRA, ("pmi", 2, 4, 2)),
    ("rank beyond the world", {"RANK": "2", "WORLD_SIZE": "2"}, ("none", 0, 1, 0)),
    ("no number", {"RANK": "x", "WORLD_SIZE": "2"}, ("none", 0, 1, 0)),
    ("endless number", {"RANK": "9" * 50, "WORLD_SIZE": "2"}, ("none", 0, 1, 0)),
]


@pytest.mark.parametrize(("name", "environ", "expected"), PLACES, ids=[row[0] for row in PLACES])
def test_place(name: str, environ: dict[str, str], expected: tuple[str, int, int, int]) -> None:
    assert identity.place(environ) == expected


JOBS: list[tuple[dict[str, str], str, str]] = [
    ({"EROICA_JOB": "llm", **TORCHRUN}, "train.py", "llm"),
    (TORCHRUN, "train.py", "run7"),
    ({**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}, "/a/train.py", "train"),
    (SLURM, "train.py", "slurm-4711"),
    (OPENMPI, "train.py", "prte-12-1"),
    ({"EROICA_JOB": "a b\n\x1b[31m"}, "", "a-b-31m"),
    ({}, "", "job"),
    ({"EROICA_JOB": "x" * 999}, "", "x" * 128),
]


@pytest.mark.parametrize(("environ", "script", "expected"), JOBS)
def test_job_name(environ: dict[str, str], script: str, expected: str) -> None:
    assert identity.job_name(environ, script) == expected


def test_host_name() -> None:
    assert identity.host_name({"EROICA_HOST": "a"}, "real") == "a"
    assert identity.host_name({}, "real.example") == "real.example"
    assert identity.host_name({}, "") == "localhost"


def launch(environ: dict[str, str], size: int = 8, parent: int = 1, unique: str = "") -> str:
    return identity.run_id(environ, size, parent, unique)


def test_all_ranks_of_one_launch_share_a_run_id() -> None:
    other_host = {**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0", "TORCHELASTIC_RESTART_COUNT": "1"}
    assert launch(TORCHRUN, parent=10) == launch(other_host, parent=20)
    one_host = {**TORCHRUN, "LOCAL_WORLD_SIZE": "8"}
    assert launch(one_host, parent=10, unique="a") == launch({**one_host, "RANK": "1"}, parent=10, unique="b")


@pytest.mark.parametrize(
    "change",
    [
        {"MASTER_PORT": "29501"},
        {"TORCHELASTIC_RUN_ID": "run8"},
        {"SLURM_JOB_ID": "1"},
        {"SLURM_STEP_ID": "3"},
        {"SLURM_RESTART_COUNT": "1"},
    ],
)
def test_another_launch_has_another_run_id(change: dict[str, str]) -> None:
    assert launch(TORCHRUN) != launch({**TORCHRUN, **change})


def test_on_one_host_restarts_and_parents_tell_launches_apart() -> None:
    one_host = {**TORCHRUN, "LOCAL_WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "none"}
    ids = {
        launch(one_host, parent=1),
        launch(one_host, parent=2),
        launch({**one_host, "TORCHELASTIC_RESTART_COUNT": "1"}, parent=1),
        launch({}, size=4, parent=1),
        launch({}, size=4, parent=2),
        launch({}, size=1, unique="pid 1"),
        launch({}, size=1, unique="pid 2"),
    }
    assert len(ids) == 7


@pytest.mark.parametrize(
    ("modules", "types", "size", "expected"),
    [
        ({"torch"}, {"Parameter"}, 1, "none"),
        ({"torch"}, {"Parameter"}, 4, "ddp"),
        ({"torch"}, {"DTensor"}, 4, "fsdp"),
        ({"torch"}, {"FlatParameter"}, 4, "fsdp"),
        ({"deepspeed"}, {"Parameter"}, 4, "deepspeed"),
        ({"megatron.core.parallel_state", "deepspeed"}, {"Parameter"}, 4, "megatron"),
    ],
)
def test_framework(modules: set[str], types: set[str], size: int, expected: str) -> None:
    assert identity.framework(modules, types, size) == expected


class Group:
    def __init__(self, desc: str) -> None:
        self.group_desc = desc


class World:
    """What torch's registry holds, as far as it is read."""

    def __init__(self, *described: tuple[str, str, list[int]]) -> None:
        made = [(Group(desc), name, ranks) for name, desc, ranks in described]
        self.pg_names = {group: name for group, name, _ in made}
        self.pg_group_ranks = {group: {rank: i for i, rank in enumerate(ranks)} for group, _, ranks in made}
        self.pg_map = {group: ("nccl", None) for group, _, _ in made}


def test_process_groups_are_told_as_they_are() -> None:
    world = World(("10", "mesh_tp", [6, 7]), ("0", "default_pg", list(range(8))))
    assert groups.process_groups(world) == [
        {"name": "0", "desc": "default_pg", "backend": "nccl", "ranks": list(range(8))},
        {"name": "10", "desc": "mesh_tp", "backend": "nccl", "ranks": [6, 7]},
    ]


def test_large_groups_are_written_as_ranges() -> None:
    (group,) = groups.process_groups(World(("0", "default_pg", list(range(100_000)))))
    assert group["ranks"] == "0-99999"
    assert groups.ranges([1, 2, 3, 7, 9, 10]) == "1-3,7,9-10"


def test_a_registry_without_the_expected_parts_gives_nothing() -> None:
    assert groups.process_groups(object()) == []


COORDINATES: list[tuple[list[tuple[str, list[int]]], int, str, dict[str, int]]] = [
    ([("default_pg", [0, 1, 2, 3])], 2, "ddp", {"dp": 2}),
    ([("default_pg", [0, 1, 2, 3])], 2, "megatron", {}),
    ([("default_pg", [0, 1, 2, 3]), ("mesh_dp", [1, 3]), ("mesh_tp", [2, 3])], 3, "fsdp", {"dp": 1, "tp": 1}),
    (
        [("TENSOR_MODEL_PARALLEL_GROUP", [4, 5]), ("PIPELINE_MODEL_PARALLEL_GROUP", [1, 5]), ("MODEL_PARALLEL_GROUP", [5])],
        5,
        "megatron",
        {"tp": 1, "pp": 1},
    ),
    ([("EXPERT_MODEL_PARALLEL_GROUP", [0, 4])], 4, "megatron", {"ep": 1}),
    ([("default_pg", [0, 1]), ("mine", [0, 1])], 0, "ddp", {}),
]


@pytest.mark.parametrize(("described", "rank", "framework", "expected"), COORDINATES)
def test_coordinates(described: list[tuple[str, list[int]]], rank: int, framework: str, expected: dict[str, int]) -> None:
    found: list[dict[str, Any]] = [{"desc": desc, "ranks": ranks} for desc, ranks in described]
    assert groups.coordinates(found, rank, framework) == expected

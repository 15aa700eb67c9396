"""Files that are no traces are named for what they are, in a folder and alone; a pickle is never loaded."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from eroica.producers.trace.frontend import open_workers
from eroica.producers.trace.listing import MAX_LOOKED_INTO, list_traces
from eroica.producers.trace.strangers import known_stranger
from eroica.schemas.errors import InvalidInput

pytestmark = pytest.mark.unit

SHARED = Path(__file__).resolve().parents[3] / "../shared/data"
DUMP = {"version": "2.9", "pg_config": {"0": {"name": "0"}}, "pg_status": {}, "entries": []}


class Loud:
    """Loading it would make a file."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.place,)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (pickle.dumps(DUMP, protocol=2), "Flight Recorder"),
        (pickle.dumps(DUMP, protocol=5), "Flight Recorder"),
        (json.dumps(DUMP).encode(), "Flight Recorder"),
        (pickle.dumps([1, 2]), "a pickle"),
        (b"Process 7: python train.py\nPython v3.12.3\n\nThread 7 (idle): \"MainThread\"\n", "py-spy"),
        (b'[{"pid": 3, "thread_id": 1, "thread_name": "MainThread", "owns_gil": true, "frames": []}]', "py-spy"),
        (b'{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "time": "now", "start_ts": 1, "nodes": [{"id": 1}]}', "execution trace"),
        (b'{"header":{"rank":0},"metadata":{"inspector_output_format_version":"v4.0"},"coll_perf":{}}', "NCCL's inspector"),
        (b'[{"name": "process_name", "pid": 4, "args": {"name": "Ascend Hardware"}, "ph": "M"}]', "Ascend"),
        (b'{"schemaVersion": 1, "traceEvents": [{"name": "AscendCL@aclrtLaunch"}]}', None),
        (b'[{"ph": "X", "pid": 3, "tid": 1, "name": "thread_id"}]', None),
        (b"\x28\xb5\x2f\xfd\x00", "compressed"),
        (b"PK\x03\x04", "compressed"),
        (b"", None),
        (b'{"traceEvents": []}', None),
        (json.dumps({"schemaVersion": 1, "distributedInfo": {"pg_config": [{"ranks": [*range(2_000)]}]}}).encode(), None),
        (b'{"entries": 1}', None),
        (b"\x1f\x8b", None),
        (b"Process 7 of 8 started", None),
    ],
)  # fmt: skip
def test_kinds(tmp_path: Path, raw: bytes, says: str | None) -> None:
    path = tmp_path / "file"
    path.write_bytes(raw)
    kind = known_stranger(path)
    assert kind is None if says is None else kind is not None and says in kind[0]


def test_a_pickle_is_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "x.pkl").write_bytes(pickle.dumps({"pg_config": Loud(tmp_path / "loaded")}))
    assert known_stranger(tmp_path / "x.pkl") is not None
    with pytest.raises(InvalidInput, match="Flight Recorder"):
        list(open_workers(tmp_path / "x.pkl"))
    assert not (tmp_path / "loaded").exists()


def test_what_cannot_be_read_is_no_known_kind(tmp_path: Path) -> None:
    assert known_stranger(tmp_path / "absent") is None


def test_a_folder_says_what_lies_in_it(tmp_path: Path) -> None:
    for name in ("_dump_0", "_dump_1"):
        (tmp_path / name).write_bytes(pickle.dumps(DUMP))
    with pytest.raises(InvalidInput, match=r"it holds no trace. each of 2 files is a Flight Recorder dump.*torchfrtrace"):
        list_traces(tmp_path)
    (tmp_path / "rank0.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("")
    listing = list_traces(tmp_path)
    assert [p.name for p in listing.files] == ["rank0.json"]
    assert ["Flight Recorder" in note for note in listing.notes] == [True, False]
    assert listing.notes[1] == "1 file is no trace by the name and left out: 1 .txt"


def test_only_so_many_files_are_looked_into(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text("{}")
    for number in range(MAX_LOOKED_INTO + 3):
        (tmp_path / f"{number}.pkl").write_bytes(b"\x80\x04")
    listing = list_traces(tmp_path)
    assert sum(listing.known.values()) == MAX_LOOKED_INTO
    assert listing.others == {".pkl": 3}


@pytest.mark.parametrize("place", ["flight_recorder/gpu_error_2nd", "flight_recorder/lock_gil_1st", "pyspy"])
def test_real_ones(place: str) -> None:
    folder = SHARED / place
    if not folder.exists():
        pytest.skip(f"{place} is not on this machine")
    with pytest.raises(InvalidInput, match=r"Flight Recorder|py-spy"):
        list_traces(folder)

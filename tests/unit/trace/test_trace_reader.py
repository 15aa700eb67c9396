from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eroica.producers.trace import reader
from eroica.producers.trace.columns import CPU_OP, KERNEL, MEMCPY, RUNTIME
from eroica.producers.trace.reader import read_trace
from eroica.schemas.errors import InvalidInput

pytestmark = pytest.mark.unit


def op(ts: Any, dur: Any, name: str = "aten::mm", **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, **more}


def write(tmp_path: Path, raw: bytes, name: str = "t.json") -> Path:
    path = tmp_path / name
    path.write_bytes(raw)
    return path


TWO = json.dumps([op(10, 5), op(20, 5, "aten::add")])
WHOLE = (
    '{"schemaVersion": 1, "distributedInfo": {"rank": 3}, "traceEvents": ' + TWO + ', "baseTimeNanoseconds": 1700000000000000000}'
)


@pytest.mark.parametrize(
    ("raw", "absolute"),
    [
        pytest.param(WHOLE.encode(), True, id="document"),
        pytest.param(WHOLE.replace('"traceEvents"', '\n "traceEvents"').encode(), True, id="pretty printed"),
        pytest.param(b"\xef\xbb\xbf" + WHOLE.encode(), True, id="byte order mark"),
        pytest.param(gzip.compress(WHOLE.encode()), True, id="gzip"),
        pytest.param(gzip.compress(WHOLE[:90].encode()) + gzip.compress(WHOLE[90:].encode()), True, id="gzip of two members"),
        pytest.param(TWO.encode(), False, id="bare list"),
        pytest.param(TWO.replace("cpu_op", "Operator").replace('"tid": 1', '"tid": "1"').encode(), False, id="kineto of 2020"),
        pytest.param(TWO.replace('"ts": ', '"ts": 17000000000000').encode(), True, id="microseconds since the epoch"),
    ],
)
def test_every_convention_gives_the_same_columns(tmp_path: Path, raw: bytes, absolute: bool) -> None:
    trace = read_trace(write(tmp_path, raw))
    assert [trace.names[n] for n in trace.name] == ["aten::mm", "aten::add"]
    assert trace.category.tolist() == [CPU_OP, CPU_OP]
    assert trace.ts_us.tolist() == [0, 10]
    assert trace.dur_us.tolist() == [5, 5]
    assert trace.absolute is absolute
    assert trace.repairs == {}


def test_arguments_become_columns(tmp_path: Path) -> None:
    args = {"External id": 7, "correlation": 9, "stream": 20, "bytes": 128, "unknown": {"deep": [1]}}
    collective = {
        "Collective name": "allreduce",
        "In msg nelems": 4,
        "dtype": "Float",
        "Group size": 2,
        "Seq": 5,
        "stream": "0x0",
    }
    events = [
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "pid": 0, "tid": 20, "ts": 1, "dur": 1, "args": args},
        {"ph": "X", "cat": "kernel", "name": "ncclKernel", "pid": 0, "tid": 21, "ts": 2, "dur": 1, "args": collective},
        {"ph": "X", "cat": "cuda_driver", "name": "cuLaunch", "pid": 0, "tid": 1, "ts": 3, "dur": 1, "args": None},
        {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 1, "pid": 0, "tid": 1, "ts": 3},
        {"ph": "M", "name": "process_name", "pid": "Spans", "tid": "x", "args": {"name": "python"}},
    ]
    trace = read_trace(write(tmp_path, json.dumps({"traceEvents": events}).encode()))
    assert trace.category.tolist() == [MEMCPY, KERNEL, RUNTIME]
    assert (trace.correlation[0], trace.bytes[0]) == (9, 128)
    assert [trace.streams[s] for s in trace.stream] == ["20", "0x0", ""]
    assert (trace.comm[1].collective, trace.comm[1].in_elements, trace.comm[1].seq) == ("allreduce", 4, 5)
    assert trace.correlation[2] == -1


@pytest.mark.parametrize("piece_bytes", [150, 400, 1000, 5000])
def test_pieces_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int) -> None:
    # The lists of objects look like event boundaries, in the arguments and in the tail.
    events = [op(3 * i, 2, f"f{i}", args={"Shapes": [{"name": 1}, {"name": 2}], "text": 'a"},{"ph"'}) for i in range(40)]
    document = {"deviceProperties": [{"id": 0}, {"id": 1}], "traceEvents": events, "other": [{"id": i} for i in range(50)]}
    for name, value in (("document", document), ("list", events)):
        path = write(tmp_path, json.dumps(value).encode(), f"{name}.json")
        whole = read_trace(path)
        with monkeypatch.context() as patch:
            patch.setattr(reader, "PIECE_BYTES", piece_bytes)
            cut = read_trace(path)
        assert cut.names == whole.names
        assert np.array_equal(cut.ts_us, whole.ts_us)
        assert cut.repairs == whole.repairs == {}
        assert len(whole) == 40


@pytest.mark.parametrize(
    ("damage", "kept", "repairs"),
    [
        pytest.param(lambda t: t.replace(b'"dur": 5', b'"dur": -5', 1), 2, {"negative_durations": 1}, id="negative duration"),
        pytest.param(lambda t: t.replace(b'"ts": 10', b'"ts": "10"'), 3, {"times_as_strings": 1}, id="time as a string"),
        pytest.param(lambda t: t.replace(b'"ts": 10', b'"ts": "noon"'), 2, {"times_unusable": 1}, id="time as a word"),
        pytest.param(lambda t: t.replace(b'"ts": 10', b'"ts": NaN'), 2, {"bytes_mended": 1, "times_unusable": 1}, id="NaN"),
        pytest.param(
            lambda t: t.replace(b'"ts": 10', b'"ts": "inf"'), 2, {"times_as_strings": 1, "times_not_finite": 1}, id="inf"
        ),
        pytest.param(lambda t: t.replace(b'"ts": 10', b'"ts": 9e14'), 2, {"times_out_of_range": 1}, id="another age"),
        pytest.param(lambda t: t.replace(b"aten::mm", b"aten::\xff\xfe"), 3, {"bytes_mended": 1}, id="invalid UTF-8"),
        pytest.param(lambda t: t.replace(b'"x": 1', b'"x": Infinity'), 3, {"bytes_mended": 1}, id="Infinity in an argument"),
        pytest.param(lambda t: t.replace(b'"pid": 1', b'"pid": 1.5', 1), 3, {}, id="odd pid"),
        pytest.param(lambda t: t.replace(b"aten::mm", b"C:\\Users\\a.py(3): f"), 3, {"bytes_mended": 1}, id="path of Windows"),
        pytest.param(lambda t: t.replace(b"aten::mm", b"aten::\tmm"), 3, {"bytes_mended": 1}, id="control character"),
        pytest.param(lambda t: t.replace(b'"x": 1}', b'"x": 1, }'), 3, {"bytes_mended": 1}, id="comma too many in an event"),
        pytest.param(lambda t: t.replace(b"}]", b"},\n]"), 3, {}, id="comma after the last event"),
        pytest.param(lambda t: t.replace(b'"aten::relu"', b"0x420aa70"), 2, {"events_unreadable": 1}, id="last one unreadable"),
        pytest.param(lambda t: t.replace(b'"aten::mm"', b'aten::mm"'), 2, {"events_unreadable": 1}, id="lost quote"),
        pytest.param(
            lambda t: t[: t.index(b"aten::relu")], 2, {"events_unreadable": 1, "file_truncated": 1}, id="cut in an event"
        ),
        pytest.param(lambda t: t[: t.rindex(b"]")], 3, {"file_truncated": 1}, id="cut after an event"),
    ],
)
def test_damage_is_mended_or_counted(tmp_path: Path, damage: Any, kept: int, repairs: dict[str, int]) -> None:
    events = [op(10, 5, args={"x": 1}), op(20, 5, "aten::add"), op(30, 5, "aten::relu")]
    raw = damage(json.dumps({"distributedInfo": {"rank": 1}, "traceEvents": events, "traceName": "n"}).encode())
    trace = read_trace(write(tmp_path, raw))
    assert len(trace) == kept
    assert trace.repairs == repairs
    assert trace.meta["distributedInfo"] == {"rank": 1}


INFO = '{"backend": "nccl", "rank": 3, "world_size": 8, "pg_config": [{"pg_name": "0", "pg_size": 8}]}'


@pytest.mark.parametrize("at_end", [True, False], ids=["at the end", "at the head"])
@pytest.mark.parametrize(
    ("others", "info", "told"),
    [
        pytest.param('"INFO": ["x = {"event_id": 1}", "y"]', INFO, json.loads(INFO), id="bare quotes in a log of Kineto's"),
        pytest.param('"traceName": "D:\\xes\\q.json"', INFO, json.loads(INFO), id="path of Windows"),
        pytest.param('"a": 1', INFO.replace("8}]", "8},]"), json.loads(INFO), id="comma after the last group"),
        pytest.param(
            '"a": 1', INFO.replace('[{"pg_name": "0", "pg_size": 8}]', "]"), {"rank": 3, "world_size": 8}, id="groups lost"
        ),
        pytest.param('"a": 1', INFO.replace('"0"', "x"), {"rank": 3, "world_size": 8}, id="word without quotes"),
        pytest.param('"INFO": ["{"rank": 7}"]', '{"backend": bare}', None, id="no rank where it belongs"),
    ],
)
def test_who_it_is_survives_a_broken_head_or_end(tmp_path: Path, others: str, info: str, told: object, at_end: bool) -> None:
    events = '"traceEvents": [' + ", ".join(json.dumps(op(at, 5)) for at in (10, 20, 30)) + "]"
    meta = f'{others}, "distributedInfo": {info}'
    raw = "{" + (f"{events}, {meta}" if at_end else f"{meta}, {events}") + "}"
    trace = read_trace(write(tmp_path, raw.encode()))
    assert len(trace) == 3
    assert trace.meta.get("distributedInfo") == told


def test_gzip_cut_short_keeps_what_came_before(tmp_path: Path) -> None:
    events = [op(i, 1, f"f{i * 7919 % 1000}") for i in range(2000)]
    packed = gzip.compress(json.dumps({"traceEvents": events}).encode())
    trace = read_trace(write(tmp_path, packed[: len(packed) // 2]))
    assert 500 < len(trace) < 2000
    assert trace.repairs["file_truncated"] >= 1


def test_epoch_times_keep_a_quarter_of_a_microsecond(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, json.dumps([op(1_700_000_000_000_000.25, 1.5), op(1_700_000_000_000_002.5, 1)]).encode()))
    assert trace.ts_us.tolist() == [0, 2.25]
    assert trace.origin_us == 1_700_000_000_000_000.25


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "it is empty"),
        (b"   \n", "it is empty"),
        (b"PK\x03\x04", "not JSON"),
        (b'{"a": 1}', "no list 'traceEvents'"),
        (b'{"a": ', "no list 'traceEvents'"),
        (b'{"traceEvents": null}', "no list 'traceEvents'"),
        (b'"text"', "not JSON"),
        (b"\x1f\x8bnot gzip at all", "it is empty"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, raw: bytes, says: str) -> None:
    path = write(tmp_path, raw)
    with pytest.raises(InvalidInput, match=says) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)


def test_deep_nesting_is_no_recursion(tmp_path: Path) -> None:
    deep = b"[" * 200_000 + b"]" * 200_000
    raw = (
        b'{"traceEvents": [' + json.dumps(op(1, 1)).encode() + b', {"ph": "X", "ts": 2, "dur": 1, "args": {"z": ' + deep + b"}}]}"
    )
    trace = read_trace(write(tmp_path, raw))
    assert len(trace) == 1
    assert trace.repairs["events_unreadable"] == 1


def test_missing_file_and_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(InvalidInput, match="cannot be read"):
            read_trace(path)


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = write(tmp_path, gzip.compress(b'{"traceEvents": [' + b" " * 5_000_000), "bomb.json.gz")
    with pytest.raises(InvalidInput, match="larger than 1000000 bytes"):
        read_trace(bomb, max_bytes=1_000_000)
    monkeypatch.setattr(reader, "MAX_EVENT_BYTES", 2 * 2**20)
    monkeypatch.setattr(reader, "PIECE_BYTES", 2**20)
    with pytest.raises(InvalidInput, match="no event ends within"):
        read_trace(bomb)


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_full_of_tiny_objects_is_refused_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    monkeypatch.setattr(reader, "_SURE_OBJECTS", 100_000)
    raw = b'{"traceEvents":[' + b"{}," * 2_000_000 + b"{}]}"
    path = write(tmp_path, gzip.compress(raw) if packed else raw, "tiny.json.gz" if packed else "tiny.json")
    with pytest.raises(InvalidInput, match="its objects have 3 bytes on average"):
        read_trace(path)
    monkeypatch.setattr(reader, "MAX_OBJECTS", 50_000)
    with pytest.raises(InvalidInput, match="more than 50,000 objects"):
        read_trace(path)


def test_a_file_packed_as_no_trace_is_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_SURE_BYTES", 2**20)
    event = json.dumps(op(1, 1)).encode()
    path = write(tmp_path, gzip.compress(b'{"traceEvents":[' + (event + b",") * 200_000 + event + b"]}"), "bomb.json.gz")
    with pytest.raises(InvalidInput, match="one compressed byte gives more than 200 of JSON"):
        read_trace(path)

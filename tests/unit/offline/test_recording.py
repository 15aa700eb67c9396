"""The format of recordings: nothing lost, nothing added, and whatever is broken is said."""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from eroica.bus import Incoming
from eroica.cli.main import main
from eroica.offline.earlyend import early_end
from eroica.offline.recording import MANIFEST, Line, from_line, read_file, read_manifest, to_line, verify
from eroica.offline.writer import RecordingWriter
from eroica.schemas.errors import InvalidInput, UsageError

pytestmark = pytest.mark.unit


def made(partition: int, offset: int, value: bytes | None = b"{}", key: bytes | None = b"j") -> Incoming:
    return Incoming("eroica.control", partition, offset, key, value, (("ce_type", b"x\xff"),), 1_000 + offset)


def write(directory: Path, records: list[Incoming], topic: str = "control") -> None:
    writer = RecordingWriter(directory, job="j", prefix="eroica.", settings={})
    for record in records:
        writer.add(topic, record)
        writer.passed(topic, record.partition, record.offset)
    writer.close()


def read_all(directory: Path) -> list[Incoming]:
    manifest = read_manifest(directory)
    verify(directory, manifest)
    return [record for entry in manifest.files for record in read_file(directory, entry)]


@settings(max_examples=100)
@given(
    st.binary(max_size=50) | st.none(),
    st.binary(max_size=200) | st.none(),
    st.lists(st.tuples(st.text(max_size=9), st.binary(max_size=9))),
)
def test_any_bytes_survive_a_line(key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes]]) -> None:
    record = Incoming("control", 3, 7, key, value, tuple(headers), 12)
    assert from_line(to_line("control", record), "here") == record


def test_what_is_written_is_read(tmp_path: Path) -> None:
    records = [made(p, o, value) for p in (0, 11) for o, value in enumerate([b"{}", b"\xff\x00", None, "ü\u2028".encode()])]
    write(tmp_path / "rec", records)
    found = read_all(tmp_path / "rec")
    assert [(r.partition, r.offset, r.key, r.value, r.headers, r.timestamp_ms) for r in found] == [
        (r.partition, r.offset, r.key, r.value, r.headers, r.timestamp_ms) for r in records
    ]


def test_many_frames_are_one_file(tmp_path: Path) -> None:
    noise = random.Random(1)
    records = [made(0, offset, noise.randbytes(3_000)) for offset in range(400)]
    write(tmp_path / "rec", records)
    assert [r.value for r in read_all(tmp_path / "rec")] == [r.value for r in records]


def test_going_on_adds_only_what_is_new(tmp_path: Path) -> None:
    write(tmp_path / "rec", [made(0, 0), made(0, 1)])
    writer = RecordingWriter(tmp_path / "rec", job="j", prefix="eroica.", settings={})
    assert writer.start_of("control") == {0: 2}
    for offset in (1, 2, 3):
        writer.add("control", made(0, offset))
    writer.close()
    assert [r.offset for r in read_all(tmp_path / "rec")] == [0, 1, 2, 3]


def test_a_recorder_killed_between_checkpoints_loses_only_what_followed(tmp_path: Path) -> None:
    write(tmp_path / "rec", [made(0, 0), made(0, 1)])
    (file,) = (tmp_path / "rec").glob("*.zst")
    with file.open("ab") as stream:
        stream.write(b"half a fra")
    assert [r.offset for r in read_all(tmp_path / "rec")] == [0, 1]
    write(tmp_path / "rec", [made(0, 2)])
    assert [r.offset for r in read_all(tmp_path / "rec")] == [0, 1, 2]


def test_another_jobs_folder_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "rec", [made(0, 0)])
    with pytest.raises(InvalidInput, match="recording of job 'j'"):
        RecordingWriter(tmp_path / "rec", job="other", prefix="eroica.", settings={})


def test_a_folder_with_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(UsageError, match="not empty"):
        RecordingWriter(tmp_path, job="j", prefix="eroica.", settings={})


def cut(directory: Path) -> None:
    file = next(directory.glob("*.zst"))
    file.write_bytes(file.read_bytes()[:-3])


def flip(directory: Path) -> None:
    file = next(directory.glob("*.zst"))
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(bytes(raw))


def lose_manifest(directory: Path) -> None:
    (directory / MANIFEST).unlink()


def lose_file(directory: Path) -> None:
    next(directory.glob("*.zst")).unlink()


def edit(**changes: object) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        path = directory / MANIFEST
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def edit_entry(**changes: object) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        path = directory / MANIFEST
        manifest = json.loads(path.read_text())
        manifest["files"][0] |= changes
        path.write_text(json.dumps(manifest))

    return change


def link(name: str) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        (directory / name).rename(directory.parent / "elsewhere")
        (directory / name).symlink_to(directory.parent / "elsewhere")

    return change


def pipe(name: str) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        (directory / name).unlink()
        os.mkfifo(directory / name)

    return change


def forge(*frames: bytes, **changes: object) -> Callable[[Path], None]:
    """Another content, of which the manifest tells rightly."""

    def change(directory: Path) -> None:
        raw = b"".join(zstandard.ZstdCompressor(level=1).compress(frame) for frame in frames)
        (directory / "control-0.jsonl.zst").write_bytes(raw)
        edit_entry(bytes=len(raw), sha256=hashlib.sha256(raw).hexdigest(), **changes)(directory)

    return change


def twice(directory: Path) -> None:
    path = directory / MANIFEST
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"files": manifest["files"] * 2}))


def flood(directory: Path) -> None:
    """Lines that are right, a million of them, in a few KB."""
    lines = b"".join(b'{"topic":"control","partition":0,"offset":%d}\n' % n for n in range(1_000_000))
    forge(lines)(directory)


FILE = "control-0.jsonl.zst"


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (cut, "is cut"),
        (flip, "checksum"),
        (lose_manifest, "no manifest.json"),
        (lose_file, "cannot be read"),
        (edit(version=2), "format version 2"),
        (edit(format="other"), "not a recording of ours"),
        (edit(files="none"), "manifest is broken"),
        (edit_entry(file="../../etc/passwd"), "cannot be its own"),
        (edit_entry(file="control-1.jsonl.zst"), "cannot be its own"),
        (edit_entry(messages=7), "holds 3 messages"),
        (edit_entry(topic="nope", file="nope-0.jsonl.zst"), "unknown topic"),
        (edit_entry(messages=2), "more messages than the manifest's 2"),
        (edit_entry(bytes=-1), "manifest is broken"),
        (edit_entry(bytes=10**18), "is cut"),
        (edit_entry(bytes=10**30), "manifest is broken"),
        (edit(positions={"control": {"x": 1}}), "manifest is broken"),
        (edit(settings=[1]), "manifest is broken"),
        (twice, "a file twice"),
        (link(FILE), "it is a link"),
        (link(MANIFEST), "it is a link"),
        (pipe(FILE), "no ordinary file"),
        (pipe(MANIFEST), "no ordinary file"),
        (forge(b"\0" * 2**30), "the line is cut or too long"),
        (forge(b"\n" * 2**28), "cannot be decoded"),
        (forge(b"[" * 100_000 + b"\n"), "cannot be decoded"),
        (forge(b'{"topic":"control","partition":0,"offset":1e99}\n'), "cannot be decoded"),
        (forge(b'{"topic":"iterations","partition":0,"offset":1}\n'), "does not belong here"),
        (flood, "more messages than the manifest's 3"),
    ],
)
def test_whatever_is_broken_is_said(
    tmp_path: Path, damage: Callable[[Path], None], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "rec", [made(0, 0), made(0, 1), made(0, 2)])
    damage(tmp_path / "rec")
    with pytest.raises(InvalidInput, match=says):
        read_all(tmp_path / "rec")
    assert main(["replay", str(tmp_path / "rec")]) == 3
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("name", [FILE, f"{MANIFEST}.new", "verdicts-0.jsonl.zst"])
def test_going_on_in_a_folder_from_elsewhere_writes_nothing_outside_of_it(tmp_path: Path, name: str) -> None:
    write(tmp_path / "rec", [made(0, 0)])
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "rec" / name).unlink(missing_ok=True)
    (tmp_path / "rec" / name).symlink_to(precious)
    with pytest.raises((InvalidInput, UsageError)):
        write(tmp_path / "rec", [made(0, 1)], name.partition("-")[0] if "verdicts" in name else "control")
    assert precious.read_text() == "mine"


def test_a_line_that_lies_about_its_base64_is_refused() -> None:
    with pytest.raises(InvalidInput, match="base64"):
        from_line(Line("control", 0, 0, payload_b64="###"), "file:1")


def test_a_full_disk_is_said_and_leaves_what_was_confirmed(tmp_path: Path) -> None:
    write(tmp_path / "rec", [made(0, 0)])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(UsageError, match="cannot be written"):
            write(tmp_path / "rec", [made(0, n, os.urandom(40_000)) for n in range(1, 20)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert [r.offset for r in read_all(tmp_path / "rec")] == [0]
    write(tmp_path / "rec", [made(0, 1)])
    assert [r.offset for r in read_all(tmp_path / "rec")] == [0, 1]


KILLED = """
import os, signal, sys
from pathlib import Path
from eroica.bus import Incoming
from eroica.offline.writer import RecordingWriter
writer = RecordingWriter(Path(sys.argv[1]), job="j", prefix="eroica.", settings={})
def add(partition, offset):
    writer.add("control", Incoming("eroica.control", partition, offset, b"j", os.urandom(300_000), (), 1_000 + offset))
for offset in range(2):
    add(0, offset)
writer.checkpoint()
for offset in range(2, 5):
    add(0, offset)
add(1, 0)  # a file that no checkpoint has seen
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_recording_that_ended_early_says_how_much_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rec = tmp_path / "rec"
    done = subprocess.run([sys.executable, "-c", KILLED, str(rec)], timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL
    found = early_end(rec, read_manifest(rec))
    assert found is not None
    assert 3 <= found.messages <= 4, "a frame may stand in the process's own buffer in part"
    assert main(["replay", str(rec), "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out.splitlines()[-1])["ended_early"] == {
        "messages_after": found.messages,
        "bytes_after": found.bytes,
    }
    assert f"{found.messages} messages were written after its last checkpoint and left out" in " ".join(shown.err.split())
    write(rec, [made(0, 2)])
    assert early_end(rec, read_manifest(rec)) is not None, "the other file is still there"
    write(rec, [made(1, 0)])
    assert early_end(rec, read_manifest(rec)) is None


def test_a_recorder_that_was_killed_with_all_in_memory_is_known_by_its_manifest(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "rec", job="j", prefix="eroica.", settings={})
    writer.add("control", made(0, 0))
    writer.checkpoint()
    assert str(early_end(tmp_path / "rec", read_manifest(tmp_path / "rec"))).endswith(
        "what it read after its last checkpoint is missing"
    )
    writer.close()
    assert early_end(tmp_path / "rec", read_manifest(tmp_path / "rec")) is None


def test_an_older_recording_that_says_nothing_of_its_end_is_believed(tmp_path: Path) -> None:
    write(tmp_path / "rec", [made(0, 0)])
    path = tmp_path / "rec" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["closed"]
    path.write_text(json.dumps(manifest))
    assert early_end(tmp_path / "rec", read_manifest(tmp_path / "rec")) is None
    with next((tmp_path / "rec").glob("*.zst")).open("ab") as stream:
        stream.write(b"half a fra")
    found = early_end(tmp_path / "rec", read_manifest(tmp_path / "rec"))
    assert found is not None and (found.messages, found.bytes) == (0, 10)

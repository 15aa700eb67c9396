"""The queue on disk: nothing is lost or reordered, and its size is bounded."""

from __future__ import annotations

import resource
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from eroica.producers.agent.spool import Spool
from eroica.producers.agent.spoolrecord import Record, pack

pytestmark = pytest.mark.unit


def record(number: int, size: int = 10) -> Record:
    return Record("iterations", f"job/{number}", b"x" * size, [("ce_id", str(number).encode())])


def number_of(record: Record) -> int:
    return int(dict(record.headers)["ce_id"])


def drain(spool: Spool) -> list[int]:
    found = []
    while (read := spool.read()) is not None:
        found.append(number_of(read[1]))
    return found


class SpoolMachine(RuleBasedStateMachine):
    """Against a list: appends, reads, acknowledgements, rewinds and sudden ends in any order."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.spool = self.open()
        self.waiting: list[int] = []
        self.read: list[tuple[object, int]] = []
        self.next = 0

    def open(self) -> Spool:
        return Spool(Path(self._folder.name), 10**6, segment_bytes=400)

    @rule(size=st.integers(0, 300))
    def append(self, size: int) -> None:
        assert self.spool.append(record(self.next, size))
        self.waiting.append(self.next)
        self.next += 1

    @rule()
    def read_one(self) -> None:
        found = self.spool.read()
        if len(self.read) == len(self.waiting):
            assert found is None
        else:
            assert found is not None
            assert number_of(found[1]) == self.waiting[len(self.read)]
            self.read.append((found[0], number_of(found[1])))

    @rule()
    def unread_one(self) -> None:
        if self.spool.read() is not None:
            self.spool.unread()

    @rule(share=st.floats(0, 1))
    def acknowledge(self, share: float) -> None:
        count = int(share * len(self.read))
        for position, _ in self.read[:count]:
            self.spool.ack(position)  # type: ignore[arg-type]
        self.waiting, self.read = self.waiting[count:], self.read[count:]
        self.spool.sync()

    @rule()
    def rewind(self) -> None:
        self.spool.rewind()
        self.read = []

    @rule()
    def killed(self) -> None:
        self.spool = self.open()
        self.read = []

    @invariant()
    def counts(self) -> None:
        assert self.spool.pending == len(self.waiting)
        assert self.spool.dropped == self.spool.corrupt == 0

    def teardown(self) -> None:
        self.spool.close()
        self._folder.cleanup()


TestSpoolMachine = SpoolMachine.TestCase
TestSpoolMachine.settings = settings(max_examples=60, stateful_step_count=40)


def test_acknowledged_files_are_deleted(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 10**6, segment_bytes=500)
    for number in range(50):
        spool.append(record(number))
    positions = []
    while (read := spool.read()) is not None:
        positions.append(read[0])
    assert len(list(tmp_path.glob("*.seg"))) > 5
    for position in positions:
        spool.ack(position)
    spool.sync()
    assert len(list(tmp_path.glob("*.seg"))) == 1
    assert spool.pending == 0


def test_the_oldest_go_first_when_it_is_full_and_are_counted(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 4_000, segment_bytes=1_000)
    for number in range(200):
        spool.append(record(number))
        assert spool.size_bytes <= 4_000
    left = drain(spool)
    assert left == list(range(200 - len(left), 200))
    assert spool.dropped == 200 - len(left) > 0
    assert sum(p.stat().st_size for p in tmp_path.glob("*.seg")) <= 4_000


def test_what_was_read_and_then_dropped_may_still_be_acknowledged(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 2_000, segment_bytes=500)
    spool.append(record(0))
    read = spool.read()
    assert read is not None
    for number in range(1, 60):
        spool.append(record(number))
    spool.ack(read[0])
    left = drain(spool)
    assert left == list(range(60 - len(left), 60)) and len(left) == spool.pending


@given(cut=st.integers(0, 2_000))
def test_a_record_that_was_cut_off_by_a_sudden_end_is_passed_over(cut: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        spool = Spool(Path(folder), 10**6)
        ends = [0]
        for number in range(10):
            spool.append(record(number, 100))
            ends.append(ends[-1] + len(pack(record(number, 100))))
        spool.close()
        file = next(Path(folder).glob("*.seg"))
        file.write_bytes(file.read_bytes()[:cut])
        again = Spool(Path(folder), 10**6)
        whole = sum(1 for end in ends[1:] if end <= cut)
        again.append(record(99))
        assert drain(again) == [*range(whole), 99]
        assert again.corrupt == 0
        again.close()


@pytest.mark.parametrize("when", ["before opening", "after opening"])
def test_a_damaged_part_costs_the_rest_of_its_file_only(tmp_path: Path, when: str) -> None:
    spool = Spool(tmp_path, 10**6, segment_bytes=400)
    for number in range(40):
        spool.append(record(number))
    files = sorted(tmp_path.glob("*.seg"))
    raw = bytearray(files[1].read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    if when == "before opening":
        files[1].write_bytes(raw)
        spool = Spool(tmp_path, 10**6, segment_bytes=400)
    else:
        files[1].write_bytes(raw)
    found = drain(spool)
    assert found == sorted(set(found))
    assert 30 <= len(found) < 40
    assert {0, 39} <= set(found)
    assert spool.corrupt == 1
    assert spool.pending == len(found)


@pytest.mark.parametrize("text", ["", "nonsense", "1 2", "999999 0 0", "1 -5 0", "1 99999999 3", "1 0 99"])
def test_a_cursor_that_makes_no_sense_means_everything_again(tmp_path: Path, text: str) -> None:
    spool = Spool(tmp_path, 10**6)
    for number in range(3):
        spool.append(record(number))
    spool.close()
    (tmp_path / "cursor").write_text(text, encoding="ascii")
    assert drain(Spool(tmp_path, 10**6)) == [0, 1, 2]


def test_one_record_above_the_whole_size_is_refused(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 2_000)
    assert spool.append(record(1))
    assert not spool.append(record(2, 5_000))
    assert drain(spool) == [1]
    assert spool.dropped == 1


@contextmanager
def disk_full_at(size: int) -> Iterator[None]:
    """No file may grow beyond *size* bytes: a write is cut there, and the next one refused, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_costs_messages_that_are_counted_and_nothing_else(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 10**6, segment_bytes=10_000)
    for number in range(5):
        assert spool.append(record(number, 100))
    with disk_full_at(700):
        kept = [spool.append(record(number, 100)) for number in range(5, 30)]
        spool.sync()
    with disk_full_at(0):
        assert not any(spool.append(record(number, 100)) for number in range(30, 40))
        spool.sync()
    for number in range(40, 45):
        assert spool.append(record(number, 100))
    found = drain(spool)
    assert found == sorted(set(found)) and found[-5:] == list(range(40, 45))
    assert spool.dropped + len(found) == 45 and any(kept)
    assert spool.corrupt == 0
    spool.close()
    again = Spool(tmp_path, 10**6, segment_bytes=10_000)
    assert drain(again) == found and again.corrupt == 0

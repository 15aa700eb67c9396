"""The queue on disk: nothing is lost or reordered, and its size is bounded."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from pathlib import Path

import pytest
from agent_unit_kit import disk_full_at
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
    """Against a list: appends (some on a full disk), reads, acknowledgements, rewinds and sudden ends in any order."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.spool = self.open()
        self.waiting: list[int] = []
        self.read: list[tuple[object, int]] = []
        self.next = 0
        self.in_memory: set[int] = set()
        """A sudden end costs these."""

    def open(self) -> Spool:
        return Spool(Path(self._folder.name), 10**6, segment_bytes=400)

    @rule(size=st.integers(0, 300), full=st.booleans())
    def append(self, size: int, full: bool) -> None:
        with disk_full_at(0) if full else nullcontext():
            assert self.spool.append(record(self.next, size))
        assert self.spool.disk_takes is not full
        self.in_memory = self.in_memory | {self.next} if full else set()
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
        self.waiting = [number for number in self.waiting if number not in self.in_memory]
        self.read, self.in_memory = [], set()

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


def test_what_a_full_disk_does_not_take_is_kept_in_memory_and_written_when_there_is_room(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 10**6, segment_bytes=10_000)
    for number in range(5):
        assert spool.append(record(number, 100))
    assert spool.disk_takes
    with disk_full_at(700):
        assert all(spool.append(record(number, 100)) for number in range(5, 30))
        spool.sync()
    with disk_full_at(0):
        assert all(spool.append(record(number, 100)) for number in range(30, 40))
        assert not spool.disk_takes
        spool.sync()
    assert drain(spool) == list(range(40)), "what is in memory is read as well"
    assert drain(Spool(tmp_path / "other", 10**6)) == []
    for number in range(40, 45):
        assert spool.append(record(number, 100))
    assert spool.disk_takes and spool.dropped == spool.corrupt == 0
    again = Spool(tmp_path, 10**6, segment_bytes=10_000)  # as after a kill -9
    assert drain(again) == list(range(45)) and again.corrupt == 0


def test_of_what_only_memory_takes_the_oldest_go_first_and_are_counted(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 10**6, segment_bytes=1_000, memory_bytes=2_000)
    with disk_full_at(0):
        for number in range(100):
            assert spool.append(record(number, 100))
            assert spool.size_bytes <= 2_000
        assert not spool.append(record(100, 3_000)), "larger than all of it"
        left = drain(spool)
        assert left == list(range(100 - len(left), 100)) and len(left) > 5
        assert spool.dropped == 101 - len(left)
        assert spool.close() == len(left)
    assert drain(Spool(tmp_path, 10**6)) == []


def test_memory_becomes_files_at_the_end_where_the_disk_has_room_by_then(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 10**6)
    with disk_full_at(0):
        for number in range(10):
            spool.append(record(number))
    for _ in range(4):
        read = spool.read()
        assert read is not None
        spool.ack(read[0])
    assert spool.close() == 0
    assert drain(Spool(tmp_path, 10**6)) == list(range(4, 10))


def test_a_cursor_into_lost_memory_hides_nothing_that_comes_later(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 10**6)
    with disk_full_at(100):  # room for the cursor alone
        for number in range(5):
            spool.append(record(number, 100))
        while (read := spool.read()) is not None:
            spool.ack(read[0])
        spool.sync()
    assert (tmp_path / "cursor").read_text().split()[2] == "5"
    for number in (5, 6):  # two sudden ends
        Spool(tmp_path, 10**6).append(record(number, 100))
    assert drain(Spool(tmp_path, 10**6)) == [5, 6]

"""The agent's end of the rings of events (layout and rules in ``producers/hook/wire.py``).

What lies in a ring is input from outside this process. It is read with ``pread``, never mapped, so that no ring, however it came
about, can do more than be wrong.
"""

from __future__ import annotations

import fcntl
import os
import stat
import threading
from contextlib import suppress

from eroica.producers.hook.wire import (
    EVENT,
    EVENT_MAGIC,
    RING_BELL,
    RING_BELL_AT,
    RING_BYTES,
    RING_HEAD,
    RING_HEADER_BYTES,
    RING_MAGIC,
    RING_SLOTS,
    RING_STATE,
    RING_STATE_AT,
    SLOT,
    WIRE_VERSION,
)

MAX_RINGS = 4_096
"""As many as processes are followed."""
MAX_TAKE = 1_024
"""Events taken from one ring at one look: 20,000 a second."""
READ_SLOTS = 64
"""Read at once; a ring with more is read on."""
_NUMBER_AT = EVENT.size
_MALFORMED = b""


class BadRing(ValueError):
    """What was sent is no ring."""


class Ring:
    """One process's ring. Takes ownership of the descriptor, also where it raises."""

    def __init__(self, fd: int) -> None:
        """:raises BadRing: the descriptor is of something else."""
        self.fd = fd
        try:
            found = os.fstat(fd)
            # Only memory has seals: reading it can neither wait nor fail.
            if not stat.S_ISREG(found.st_mode) or not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                raise BadRing("no sealed memory")
            if found.st_size != RING_BYTES:
                raise BadRing(f"{found.st_size} bytes instead of {RING_BYTES}")
            magic, version, _, self.pid, slots = RING_HEAD.unpack(os.pread(fd, RING_HEAD.size, 0))
            if (magic, version, slots) != (RING_MAGIC, WIRE_VERSION, RING_SLOTS):
                raise BadRing("no ring of this release")
            self._taken, self._pulse = RING_STATE.unpack(os.pread(fd, RING_STATE.size, RING_STATE_AT))
            self._bell = int(RING_BELL.unpack(os.pread(fd, RING_BELL.size, RING_BELL_AT))[0])
            self.key = (found.st_dev, found.st_ino)
            """The same for the same memory, by whatever descriptor."""
            self._complete = self._taken
            self._tell()
        except (OSError, BadRing) as error:
            os.close(fd)
            raise BadRing(str(error)) from error

    def look(self, *, ended: bool = False) -> list[bytes]:
        """Take the events that were complete at the look before; all that are complete where the writer has *ended*.

        Each is a record as in a datagram, or empty where what lies there is none of this process.
        """
        trusted, records = self._complete, []
        number, more, found = self._taken, True, 0
        while more and number - self._taken < MAX_TAKE:
            at = number % RING_SLOTS
            count = min(READ_SLOTS, RING_SLOTS - at)
            data = os.pread(self.fd, count * SLOT.size, RING_HEADER_BYTES + at * SLOT.size)
            for start in range(0, count * SLOT.size, SLOT.size):
                found = int.from_bytes(data[start + _NUMBER_AT : start + SLOT.size], "little")
                if found != number + 1:
                    more = False
                    break
                if ended or number < trusted:
                    records.append(self._record(data[start : start + _NUMBER_AT]))
                number += 1
        self._taken += len(records)
        self._complete = number
        if not more and found > number + 1 and number == self._taken and (found - 1) % RING_SLOTS == number % RING_SLOTS:
            # The writer came round although it must not: begin anew where it is, rather than wait for ever.
            self._taken = self._complete = found - 1
            records.append(_MALFORMED)
        self._tell()
        return records

    def ring_bell(self) -> None:
        """Say that a command was sent."""
        self._bell = (self._bell + 1) % 2**64
        with suppress(OSError):
            os.pwrite(self.fd, RING_BELL.pack(self._bell), RING_BELL_AT)

    def close(self) -> None:
        """Give the memory up."""
        os.close(self.fd)

    def _record(self, data: bytes) -> bytes:
        own = data[0] == EVENT_MAGIC and int.from_bytes(data[4:8], "little") == self.pid
        return data if own else _MALFORMED

    def _tell(self) -> None:
        self._pulse = (self._pulse + 1) % 2**64
        os.pwrite(self.fd, RING_STATE.pack(self._taken % 2**64, self._pulse), RING_STATE_AT)


class Rings:
    """The rings of this host, by process. Safe to use from two threads."""

    def __init__(self) -> None:
        self._rings: dict[int, Ring] = {}
        self._lock = threading.Lock()
        self.refused = 0
        """Descriptors that were no ring, or one too many."""

    def __len__(self) -> int:
        return len(self._rings)

    def attach(self, fd: int) -> list[bytes]:
        """Take a ring that came with a hello; answers what its process's former ring still held."""
        with self._lock:
            try:
                ring = Ring(fd)
            except BadRing:
                self.refused += 1
                return []
            former = self._rings.get(ring.pid)
            if former is not None and former.key == ring.key:
                ring.close()
                return []
            if former is None and len(self._rings) >= MAX_RINGS:
                self.refused += 1
                ring.close()
                return []
            self._rings[ring.pid] = ring
            return [] if former is None else _last(former)

    def look(self) -> list[bytes]:
        """Look into all rings."""
        records: list[bytes] = []
        with self._lock:
            for ring in list(self._rings.values()):
                try:
                    records += ring.look()
                except OSError:
                    self._drop(ring)
        return records

    def finish(self, pid: int) -> list[bytes]:
        """The process has ended, or writes no more: all that its ring still holds; then it is given up."""
        with self._lock:
            ring = self._rings.pop(pid, None)
            return [] if ring is None else _last(ring)

    def ring_bell(self, pid: int) -> None:
        """Say to process *pid* that a command was sent."""
        with self._lock:
            ring = self._rings.get(pid)
            if ring is not None:
                ring.ring_bell()

    def pids(self) -> list[int]:
        """Processes with a ring."""
        with self._lock:
            return sorted(self._rings)

    def close(self) -> None:
        """Give all up; a successor finds in them what was not taken."""
        with self._lock:
            for ring in self._rings.values():
                ring.close()
            self._rings.clear()

    def _drop(self, ring: Ring) -> None:
        del self._rings[ring.pid]
        ring.close()
        self.refused += 1


def _last(ring: Ring) -> list[bytes]:
    records: list[bytes] = []
    with suppress(OSError):
        while len(records) < RING_SLOTS:
            more = ring.look(ended=True)
            records += more
            if not more:
                break
    ring.close()
    return records

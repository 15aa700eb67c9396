"""The hook's end of the ring of events: memory shared with the agent, so that telling of an event is no system call."""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
from contextlib import suppress

from eroica.producers.hook.wire import (
    EVENT_MAGIC,
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

_WORD = 8
_HEADER_WORDS = RING_HEADER_BYTES // _WORD
_SLOT_WORDS = SLOT.size // _WORD


class Ring:
    """Memory for ``RING_SLOTS`` events; layout in wire.py. One thread writes.

    The memory is a sealed memfd: it has no name that could be left behind, is never written to a disk (a mapped file is, and
    whoever writes to it then waits), and nobody can shorten it under us.
    """

    __slots__ = ("_head", "_limit", "_next", "_words", "alarm_ns", "fd", "memory")

    def __init__(self, pid: int) -> None:
        """:raises OSError, AttributeError: this system has no such memory, or has none left."""
        if sys.byteorder != "little":
            raise OSError("the ring is written in the machine's own order, which must be little-endian")
        self.fd = os.memfd_create("eroica-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, RING_BYTES)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            # All pages now, a quarter of a millisecond, rather than a page fault every 85 events.
            self.memory = mmap.mmap(self.fd, RING_BYTES, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
        except OSError:
            os.close(self.fd)
            raise
        self._words = memoryview(self.memory).cast("Q")
        RING_HEAD.pack_into(self.memory, 0, RING_MAGIC, WIRE_VERSION, 0, pid, RING_SLOTS)
        self._head = EVENT_MAGIC + (pid << 32)
        self._next = 0
        self._limit = RING_SLOTS
        self.alarm_ns = 1 << 63
        """From this monotonic time on :meth:`put` refuses: something else is due first."""

    def put(self, code: int, step: int, mono_ns: int, wall_ns: int, duration_ns: int) -> bool:
        """Add an event; false if the agent has not made room, or the alarm is due."""
        number = self._next
        if mono_ns >= self.alarm_ns or (number >= self._limit and not self._make_room()):
            return False
        # The fields of SLOT as words, the first four in one; half the time of packing them where the caches are cold.
        words = self._words
        at = _HEADER_WORDS + number % RING_SLOTS * _SLOT_WORDS
        words[at] = self._head + (code << 8)
        words[at + 1] = step
        words[at + 2] = mono_ns
        words[at + 3] = wall_ns
        words[at + 4] = duration_ns
        words[at + 5] = self._next = number + 1
        return True

    @property
    def pulse(self) -> int:
        """Changes whenever the agent looks into the ring."""
        return int(RING_STATE.unpack_from(self.memory, RING_STATE_AT)[1])

    @property
    def unread(self) -> int:
        """Events that the agent has not taken, as far as it says."""
        return min(max(self._next - int(RING_STATE.unpack_from(self.memory, RING_STATE_AT)[0]), 0), RING_SLOTS)

    def close(self) -> None:
        """Give the memory up; the agent keeps its own hold on what it has not read."""
        self._words.release()
        self.memory.close()
        with suppress(OSError):
            os.close(self.fd)

    def _make_room(self) -> bool:
        taken = int(RING_STATE.unpack_from(self.memory, RING_STATE_AT)[0])
        # Another process writes this number: one that cannot be is as good as none.
        if self._next - RING_SLOTS < taken <= self._next:
            self._limit = taken + RING_SLOTS
            return True
        return False

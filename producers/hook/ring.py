"""The hook's end of the ring of events: memory shared with the agent, so that telling of an event is no system call."""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
from contextlib import suppress

from eroica.producers.hook.wire import (
    EVENT_MAGIC,
    PROBE,
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

_WORD = 8
_HEADER_WORDS = RING_HEADER_BYTES // _WORD
_SLOT_WORDS = SLOT.size // _WORD
BELL_WORD = RING_BELL_AT // _WORD
"""Where the bell is among the ring's words."""
_SILENT = memoryview(bytes(RING_HEADER_BYTES)).cast("Q")


class Ring:
    """Memory for ``RING_SLOTS`` events; layout in wire.py. One thread writes.

    The memory is a sealed memfd: it has no name that could be left behind, is never written to a disk (a mapped file is, and
    whoever writes to it then waits), and nobody can shorten it under us.
    """

    __slots__ = ("_at", "_heads", "_limit", "_next", "_pid", "alarm_ns", "fd", "heard", "memory", "words")

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.fd = -1
        self._heads = tuple(EVENT_MAGIC + (code << 8) + (pid << 32) for code in range(PROBE))
        """The first four fields of SLOT as one word, by code."""
        self._next = 0
        self._at = _HEADER_WORDS
        """Where the next event goes; a word's index."""
        self._limit = RING_SLOTS
        """Events up to here have room, all in this round."""
        self.alarm_ns = 0
        """From this monotonic time on :meth:`put` refuses: something else is due first. 0: the ring is not open."""
        self.heard = -1
        """The bell when the socket was last found empty; -1: it must be asked."""
        self.words = _SILENT
        """The ring's memory as words; zeros while it is not open."""

    def open(self) -> None:
        """Make the memory.

        :raises OSError, AttributeError: this system has no such memory, or has none left.
        """
        if sys.byteorder != "little":
            raise OSError("the ring is written in the machine's own order, which must be little-endian")
        made = os.memfd_create("eroica-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(made, RING_BYTES)
            fcntl.fcntl(made, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            # All pages now, a quarter of a millisecond, rather than a page fault every 85 events.
            self.memory = mmap.mmap(made, RING_BYTES, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
        except OSError:
            os.close(made)
            raise
        self.fd = made
        RING_HEAD.pack_into(self.memory, 0, RING_MAGIC, WIRE_VERSION, 0, self._pid, RING_SLOTS)
        self.words = memoryview(self.memory).cast("Q")
        self.alarm_ns = 1 << 63

    @property
    def is_open(self) -> bool:
        """Whether there is memory to write to."""
        return self.fd >= 0

    def put(self, code: int, step: int, mono_ns: int, wall_ns: int, duration_ns: int) -> bool:
        """Add an event; false if the agent has not made room, the alarm is due, or the ring is not open."""
        number = self._next
        if mono_ns >= self.alarm_ns or (number >= self._limit and not self._make_room()):
            return False
        # The fields of SLOT as words, the first four in one; half the time of packing them where the caches are cold.
        words, at = self.words, self._at
        words[at] = self._heads[code]
        words[at + 1] = step
        words[at + 2] = mono_ns
        words[at + 3] = wall_ns
        words[at + 4] = duration_ns
        words[at + 5] = self._next = number + 1
        self._at = at + _SLOT_WORDS
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
        """Give the memory up; the agent keeps its own hold on what it has not read. May be called more than once."""
        if self.fd < 0:
            return
        descriptor, words = self.fd, self.words
        self.fd, self.words, self.alarm_ns, self.heard = -1, _SILENT, 0, -1
        words.release()
        self.memory.close()
        with suppress(OSError):
            os.close(descriptor)

    def _make_room(self) -> bool:
        """Look how far the agent is; whether there is room for one more event."""
        number = self._next
        taken = int(RING_STATE.unpack_from(self.memory, RING_STATE_AT)[0])
        # Another process writes this number: one that cannot be is as good as none.
        if not number - RING_SLOTS < taken <= number:
            return False
        turn = number % RING_SLOTS
        self._at = _HEADER_WORDS + turn * _SLOT_WORDS
        self._limit = min(taken, number - turn) + RING_SLOTS
        return True

"""Finds the iterations of a training loop in the order of its data loader and optimizer calls.

Source: the EROICA paper (arXiv 2506.08528), section on iteration detection: an iteration runs from the first
``dataloader.next()`` to the last ``optimizer.step()``; M = 10 identical sequences fix the signature; K = 200 events without a
match and it is learned again. Added here: loops whose iterations alternate (a period of several sequences), loops that read
without a data loader, calls foreign to the signature (evaluation) in between, and matching that resumes inside an overlap.

Pure: no clock, no thread, no torch. Times are whatever monotonic integers the caller passes (nanoseconds in the hook).
"""

from __future__ import annotations

from typing import NamedTuple

IDENTICAL_SEQUENCES = 10
"""M: so many identical sequences in a row fix the signature."""
EVENTS_WITHOUT_MATCH = 200
"""K: after so many events without a completed iteration the automaton learns again, beside the signature it has."""
MATCH_LENGTHS = 3
"""K is at least so many signature lengths, since accumulation over 256 micro-batches is longer than K itself."""
MAX_PERIOD = 8
"""Longest alternation of sequences recognised as one iteration (e.g. discriminator and generator in turn)."""
MAX_SEQUENCE = 8192
"""A sequence is forgotten when it grows beyond this many events: a loop that never steps an optimizer is no training."""
MAX_SIGNATURE = 65_536
"""Longest signature in events; bounds memory."""


class Iteration(NamedTuple):
    """One completed iteration: ``number`` counts from 0; times are those passed to ``feed``."""

    number: int
    start: int
    end: int


_new = tuple.__new__
"""A named tuple's own constructor runs Python code; this happens in every iteration, with cold caches."""


class Automaton:
    """Feed it every call; it answers with the iteration that the call completed, or ``None``.

    Tokens are integers that name the loader or the optimizer. :meth:`loader` and :meth:`optimizer` are the inputs (or
    :meth:`feed`, where each call counts); not safe for concurrent use. Invariants: iterations never overlap, their numbers
    strictly increase, and the same calls give the same answers.
    """

    __slots__ = (
        "_border",
        "_ids",
        "_last_end",
        "_learning",
        "_length",
        "_loader_seen",
        "_patience",
        "_runs",
        "_segment",
        "_segments",
        "_signature",
        "_start",
        "_starts",
        "_unmatched",
        "completed",
        "expects_loader",
        "first",
        "identical",
        "position",
        "relearned",
        "without_match",
    )

    def __init__(self, identical: int = IDENTICAL_SEQUENCES, without_match: int = EVENTS_WITHOUT_MATCH) -> None:
        if identical < 2 or without_match < 1:
            raise ValueError("a signature needs two identical sequences and a positive number of events without a match")
        self.identical = identical
        self.without_match = without_match
        self.completed = 0
        """Iterations and learned sequences so far, so the number of the iteration now running."""
        self.relearned = 0
        self.first: int | None = None
        """First token of the signature; ``None`` while there is none."""
        self.expects_loader = False
        """True where the signature begins with a loader."""
        self._signature: tuple[int, ...] = ()
        self._border: tuple[int, ...] = ()
        self.position = 0
        """Calls of the signature matched since the last iteration."""
        self._start = 0
        self._starts: list[int] = []
        self._last_end: int | None = None
        self._unmatched = 0
        self._length = self._patience = 0
        self._learning = True
        self._forget()

    @property
    def signature(self) -> tuple[int, ...]:
        """The tokens of one iteration; empty while it is being learned for the first time."""
        return self._signature

    def loader(self, token: int, start: int, end: int) -> Iteration | None:
        """A data loader returned a batch: *start* is when it was asked, *end* when it returned.

        :param token: a non-negative number that names the loader.
        """
        return self.feed(token << 1, start, end)

    def optimizer(self, token: int, end: int) -> Iteration | None:
        """An optimizer step returned at *end* (an AMP step that was skipped counts: the loop did reach it)."""
        return self.feed(token << 1 | 1, end, end)

    def begins(self, token: int) -> bool:
        """True if a call of loader *token* now would begin an iteration."""
        return self.position == 0 and self.first == token << 1

    def feed(self, symbol: int, start: int, end: int) -> Iteration | None:
        """A call: *symbol* is twice its token, one more for an optimizer."""
        signature = self._signature
        if signature:
            position = self.position
            if signature[position] != symbol:
                position = self._resume(symbol)
            if position >= 0:
                self._starts[position] = start
                position += 1
                if position == self._length:
                    begun = self._starts[0] if self.expects_loader else end if self._last_end is None else self._last_end
                    number = self.completed
                    self.completed = number + 1
                    self._last_end = end
                    self.position = self._unmatched = 0
                    self._learning = False
                    return _new(Iteration, (number, begun, end))
                self.position = position
            self._unmatched = unmatched = self._unmatched + 1
            if not self._learning:
                if unmatched >= self._patience:
                    self._learning = True
                    self._forget()
                return None
        return self._learn(symbol, start, end) if self._learning else None

    def _resume(self, symbol: int) -> int:
        """Longest part of what was matched that *symbol* continues (Knuth, Morris, Pratt); -1 if it belongs to no iteration.

        A symbol foreign to the signature leaves the match as it stands: evaluation in between is no part of the iteration.
        """
        signature = self._signature
        if symbol not in self._ids:
            return -1
        position = self.position
        while position and signature[position] != symbol:
            shorter = self._border[position - 1]
            self._starts[:shorter] = self._starts[position - shorter : position]
            position = shorter
        self.position = position
        return position if signature[position] == symbol else -1

    def _forget(self) -> None:
        """Begin learning from nothing."""
        self._segment: list[int] = []
        self._segments: list[tuple[int, ...]] = []
        self._runs = [0] * MAX_PERIOD
        self._loader_seen = False

    def _learn(self, symbol: int, start: int, end: int) -> Iteration | None:
        """Cut the calls into sequences (loaders, then optimizers) and look for a period among them.

        Without any loader each optimizer step is a sequence of its own.
        """
        is_optimizer = symbol & 1
        segment = self._segment
        if segment and (segment[-1] & 1) and (not is_optimizer or not self._loader_seen):
            self._close(tuple(segment))
            if not self._learning:
                # The call that closed the last sequence already belongs to the iteration that begins.
                return self.feed(symbol, start, end)
            self._segment = segment = []
        if not is_optimizer and not self._loader_seen:
            self._forget()
            self._loader_seen = True
            segment = self._segment
        segment.append(symbol)
        if len(segment) > MAX_SEQUENCE:
            self._forget()
        if is_optimizer:
            self._last_end = end
        return None

    def _close(self, segment: tuple[int, ...]) -> None:
        """One sequence is complete: count it, and fix the signature where M periods in a row were identical."""
        if not self._signature:
            self.completed += 1
        segments = self._segments
        segments.append(segment)
        if len(segments) > MAX_PERIOD + 1:
            del segments[0]
        for period in range(1, MAX_PERIOD + 1):
            same = len(segments) > period and segments[-1 - period] == segment
            run = self._runs[period - 1] = self._runs[period - 1] + 1 if same else 0
            if run >= (self.identical - 1) * period:
                self._adopt(tuple(symbol for part in segments[len(segments) - period :] for symbol in part))
                return

    def _adopt(self, signature: tuple[int, ...]) -> None:
        """Fix *signature*; the next call is expected to begin it."""
        if len(signature) > MAX_SIGNATURE:
            self._forget()
            return
        if self._signature:
            self.relearned += signature != self._signature
        border = [0] * len(signature)
        length = 0
        for i in range(1, len(signature)):
            while length and signature[i] != signature[length]:
                length = border[length - 1]
            length += signature[i] == signature[length]
            border[i] = length
        self._signature = signature
        self._border = tuple(border)
        self._ids = frozenset(signature)
        self._length = len(signature)
        self._patience = max(self.without_match, MATCH_LENGTHS * len(signature))
        self._starts = [0] * len(signature)
        self.position = 0
        self._unmatched = 0
        self._learning = False
        self.first = signature[0]
        self.expects_loader = not signature[0] & 1
        self._forget()

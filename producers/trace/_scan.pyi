from collections.abc import Callable

REFUSES_HALVES: int
"""Not there in a scanner that was built before beginnings and ends were read: it passes them by."""

class Scanner:
    def scan(
        self,
        data: bytes,
        start: int,
        stop: int,
        wordy: int,
        names: Callable[[bytes], int],
        categories: Callable[[bytes], int],
        threads: Callable[[bytes], int],
        streams: Callable[[bytes], int],
        /,
    ) -> tuple[int, int, tuple[bytes, ...], list[tuple[int, int, int, int, int]]] | None: ...
    def forget(self) -> None: ...

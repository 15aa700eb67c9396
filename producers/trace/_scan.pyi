from collections.abc import Callable

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

"""Opening an Nsight Systems SQLite export that nobody vouches for: read only, plain tables only, bounded work.

The file's own schema is data of a stranger. Views, triggers, virtual tables and functions in it are never run: an authorizer
refuses all but reading columns of plain tables, and a limit on the database engine's steps ends what would not end.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from eroica.producers.trace.columns import NAME_LIMIT
from eroica.schemas.errors import InvalidInput

MAGIC = b"SQLite format 3\x00"
SUFFIXES = (".sqlite", ".sqlite3", ".db")
MAX_TABLES = 2_000
MAX_COLUMNS = 500
MAX_TEXT_BYTES = 16 * 2**20
"""A longer text or blob is no name of anything. Python before 3.11 cannot tell the engine so; there the file's size bounds it."""
STEPS_PER_BYTE = 64
"""Engine steps allowed per byte of the file and query: a row takes tens of bytes and tens of steps."""
MIN_STEPS = 10_000_000
STEP_CHUNK = 200_000
ROWS_AT_ONCE = 8_192
_LIMIT_LENGTH = 0  # SQLITE_LIMIT_LENGTH
_FUNCTIONS = frozenset({"typeof", "count"})
_EXPORT_AGAIN = "export the report again: nsys export --type sqlite REPORT.nsys-rep"


def is_sqlite(path: str | Path) -> bool:
    """Whether the file begins as an SQLite database does; false where it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


class NsysDatabase:
    """An open export. Not for use by several threads.

    ``columns`` holds every plain table's columns by the table's name.
    """

    def __init__(self, path: str | Path, max_bytes: int) -> None:
        """Open *path*.

        :raises InvalidInput: no such file, larger than *max_bytes*, not SQLite, or damaged.
        """
        self.where = str(path)
        self._steps = 0
        try:
            size = Path(path).stat().st_size
        except OSError as error:
            raise InvalidInput(
                f"cannot be read: {error.strerror or error}", where=self.where, do="check path and access"
            ) from error
        if size > max_bytes:
            raise InvalidInput(
                f"the export is larger than {max_bytes} bytes",
                where=self.where,
                do="profile for a shorter time or raise the limit",
            )
        if not is_sqlite(path):
            raise InvalidInput("not an SQLite file", where=self.where, do=_EXPORT_AGAIN)
        self._most_steps = max(MIN_STEPS, STEPS_PER_BYTE * size)
        address = f"file:{quote(str(Path(path).absolute()))}?mode=ro&immutable=1"
        with self._translated():
            self._connection = sqlite3.connect(address, uri=True, check_same_thread=False, isolation_level=None)
            try:
                self.columns = self._open()
            except BaseException:
                self._connection.close()
                raise

    def __enter__(self) -> NsysDatabase:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._connection.close()

    def has(self, table: str, *columns: str) -> bool:
        """Whether there is such a table with these columns."""
        return table in self.columns and self.columns[table].issuperset(columns)

    def rows(self, query: str, parameters: Sequence[object] = ()) -> Iterator[tuple[Any, ...]]:
        """The answer to *query*, a constant of ours with names from :attr:`columns` alone, a few thousand rows at a time.

        :raises InvalidInput: the file is damaged, or does not end within its steps.
        """
        self._steps = 0
        with self._translated():
            cursor = self._connection.execute(query, parameters)
            while batch := cursor.fetchmany(ROWS_AT_ONCE):
                yield from batch

    def _open(self) -> dict[str, frozenset[str]]:
        c = self._connection
        if hasattr(c, "setlimit"):
            c.setlimit(_LIMIT_LENGTH, MAX_TEXT_BYTES)
        c.text_factory = _text
        for pragma in ("query_only=ON", "trusted_schema=OFF", "cell_size_check=ON", "mmap_size=0", "temp_store=MEMORY"):
            c.execute(f"PRAGMA {pragma}").close()
        c.set_progress_handler(self._step, STEP_CHUNK)
        schema = "SELECT name, sql FROM sqlite_master WHERE type = 'table' LIMIT ?"
        tables = [
            name
            for name, sql in c.execute(schema, (MAX_TABLES,))
            if isinstance(name, str) and isinstance(sql, str) and sql.lstrip()[:13].upper().startswith("CREATE TABLE")
        ]
        found: dict[str, frozenset[str]] = {}
        for name in tables:
            if not name.replace("_", "").isalnum():
                continue
            listed = c.execute(f"PRAGMA table_info({name})").fetchmany(MAX_COLUMNS)  # generated columns are not listed
            found[name] = frozenset(row[1] for row in listed if isinstance(row[1], str))
        c.set_authorizer(_Guard(found))
        return found

    def _step(self) -> int:
        self._steps += STEP_CHUNK
        return int(self._steps > self._most_steps)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeError) as error:  # a broken schema breaks the message, too
            told = "reading it does not end" if "interrupted" in str(error) else f"it is damaged ({error})"
            raise InvalidInput(f"the export cannot be read: {told}", where=self.where, do=_EXPORT_AGAIN) from error


class _Guard:
    """Allows reading the columns of plain tables, and two functions."""

    def __init__(self, columns: dict[str, frozenset[str]]) -> None:
        self._columns = columns

    def __call__(self, action: int, first: str | None, second: str | None, _database: str | None, through: str | None) -> int:
        if action == sqlite3.SQLITE_SELECT and through is None:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_READ and through is None and (not second or second in self._columns.get(first or "", ())):
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION and through is None and (second or "").lower() in _FUNCTIONS:
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY


def _text(raw: bytes) -> str:
    return raw[: 4 * NAME_LIMIT].decode("utf-8", "replace")[:NAME_LIMIT]

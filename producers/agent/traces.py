"""The folder where the hooks of this host write traces: in memory where possible, this agent's alone, never left behind."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from eroica.schemas.errors import UsageError
from eroica.schemas.ids import stable_id

PREFIX = "eroica-traces-"
MIN_FREE_BYTES = 512 * 2**20
"""A memory-backed folder with less room (a container's 64 MB /dev/shm) is passed over."""
ADOPTED_S = 300.0
"""Traces in a folder that was taken over stay at least so long."""
MAX_MEMO_BYTES = 4_096


class TraceStore:
    """A folder of our own below the configured one; a folder a request inside it.

    The folder is locked as long as this process lives: a folder without a living owner was left by an agent that was killed. Its
    successor in the same runtime directory goes on with it, for hooks may be writing there; other agents remove it.
    """

    def __init__(self, wished: str, memo: Path | None = None) -> None:
        """Take over the predecessor's folder or make one, and remove what other dead agents of this user left behind.

        :param memo: the file that names our folder for a successor.
        :raises UsageError: no folder can be made.
        """
        self.base = choose(wished)
        self._memo = memo
        self._adopted_at_s: float | None = None
        found = _adopt(memo, self.base) if memo is not None else None
        if found is not None:
            self.directory, self._lock = found
            self._adopted_at_s = time.monotonic()
        self.removed = _remove_stale(self.base)
        if found is None:
            self._make()

    @property
    def adopted(self) -> bool:
        """Whether the folder is that of an agent which was killed."""
        return self._adopted_at_s is not None

    def _make(self) -> None:
        try:
            fresh = Path(tempfile.mkdtemp(prefix="." + PREFIX, dir=self.base))
            self._lock = os.open(fresh / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            # Under its real name only when it is locked: another agent that starts now takes it for stale otherwise.
            self.directory = fresh.rename(fresh.with_name(fresh.name.removeprefix(".")))
        except OSError as error:
            raise UsageError(
                f"no folder for traces can be made ({error.strerror})",
                where=str(self.base),
                do="set agent.trace_directory to one that can be written",
            ) from error
        if self._memo is not None:
            with suppress(OSError):  # without it a successor makes a folder of its own
                part = self._memo.with_name(self._memo.name + ".part")
                part.write_text(str(self.directory), encoding="utf-8")
                part.replace(self._memo)

    def for_request(self, request: str) -> Path:
        """The folder of a request; its name says nothing that came from outside."""
        path = self.directory / stable_id("r", request)
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def was_ours(self, path: str, request: str) -> bool:
        """Whether *path* lies directly in the request's folder, if it is there at all."""
        candidate = Path(path)
        return candidate.parent == self.directory / stable_id("r", request) and candidate.name not in ("", ".", "..")

    def is_ours(self, path: str, request: str) -> bool:
        """Whether *path* is a plain file directly in the request's folder."""
        if not self.was_ours(path, request):
            return False
        try:
            return stat.S_ISREG(Path(path).lstat().st_mode)
        except (OSError, ValueError):  # ValueError: a null byte within the name
            return False

    def remove(self, path: Path) -> None:
        """Delete a trace and what lies beside it."""
        for name in (path, path.with_suffix(".side.json"), path.with_name(path.name + ".side.json")):
            with suppress(OSError):
                name.unlink()

    def tidy(self, under_way: set[str]) -> None:
        """Delete the folders of requests that nobody waits for any more.

        Those of a predecessor's requests stay for a while: *under_way* lacks them until ``control`` has been read again.
        """
        if self._freshly_adopted():
            return
        keep = {stable_id("r", request) for request in under_way}
        with suppress(OSError):
            for entry in self.directory.iterdir():
                if entry.is_dir() and entry.name not in keep:
                    shutil.rmtree(entry, ignore_errors=True)

    def leave(self, request: str) -> None:
        """Remove the folder of a request that every rank has answered, if it is empty; one that is asked later makes it again."""
        if not self._freshly_adopted():
            with suppress(OSError):
                (self.directory / stable_id("r", request)).rmdir()

    def _freshly_adopted(self) -> bool:
        return self._adopted_at_s is not None and time.monotonic() - self._adopted_at_s < ADOPTED_S

    def close(self) -> None:
        """Remove the folder; may be called again."""
        shutil.rmtree(self.directory, ignore_errors=True)
        if self._memo is not None:
            with suppress(OSError):
                self._memo.unlink()
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


def choose(wished: str) -> Path:
    """*wished* where it can be written and has room, else the system's temporary folder."""
    path = Path(wished)
    try:
        space = os.statvfs(path)
    except OSError:
        return Path(tempfile.gettempdir())
    roomy = space.f_bavail * space.f_frsize >= MIN_FREE_BYTES
    return path if roomy and os.access(path, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def _adopt(memo: Path, base: Path) -> tuple[Path, int] | None:
    """The folder that *memo* names, and its lock; ``None`` unless it is a folder of ours in *base* whose owner is dead."""
    try:
        with memo.open("rb") as file:
            path = Path(os.fsdecode(file.read(MAX_MEMO_BYTES)))
        found = path.lstat()
        if path.parent != base or not path.name.startswith(PREFIX):
            return None
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            return None
        lock = os.open(path / ".lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (OSError, ValueError):
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return path, lock


def _remove_stale(base: Path) -> int:
    removed = 0
    for entry in sorted(base.glob(f"{PREFIX}*")):
        with suppress(OSError):
            found = entry.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                continue
            fd = os.open(entry / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry, ignore_errors=True)
                removed += 1
            except BlockingIOError:
                pass
            finally:
                os.close(fd)
    return removed

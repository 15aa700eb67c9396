"""Temporary folders that are known to be in use, so that those of a process that was killed can be swept."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

LOCK = ".owner"


class OwnFolder:
    """A new folder, locked as long as this process lives or until it is removed or given away.

    The lock tells its state, not a process id: those are used again, and other containers may share the folder above.
    """

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        """Make it in *parent* (default: the system's temporary folder), with a name that begins with *prefix*.

        :raises OSError: it cannot be made.
        """
        hidden = Path(tempfile.mkdtemp(prefix="." + prefix, dir=parent))
        self._lock = os.open(hidden / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # Under its real name only when it is locked: whoever sweeps now would take it for left behind.
        self.path = hidden.rename(hidden.with_name(hidden.name.removeprefix(".")))

    def remove(self) -> None:
        """Delete it; may be called again."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._unlock()

    def give_away(self) -> None:
        """Leave it where it is, to whoever wants it: nobody sweeps it."""
        with suppress(OSError):
            (self.path / LOCK).unlink()
        self._unlock()

    def _unlock(self) -> None:
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


def sweep(prefix: str, parent: Path | None = None) -> int:
    """Delete this user's folders of that *prefix* whose owners are dead; returns how many. Never raises."""
    removed = 0
    with suppress(OSError):
        for entry in sorted((parent or Path(tempfile.gettempdir())).glob(f"{prefix}*")):
            removed += _sweep_one(entry)
    return removed


def _sweep_one(entry: Path) -> bool:
    """Delete *entry* if it is a folder of ours with a lock that nobody holds."""
    try:
        found = entry.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            return False
        lock = os.open(entry / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # without a lock it was given away
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.fstat(lock).st_nlink:  # it was given away since we found the lock
            return False
        shutil.rmtree(entry, ignore_errors=True)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True

"""A folder of this user's own under the shared temporary one, where anybody may have made anything."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path

from eroica.schemas.errors import UsageError


def own_folder(name: str) -> Path:
    """The folder ``NAME-UID`` under the temporary folder, made where it is missing with mode 0700.

    :raises UsageError: it is a link, somebody else's, open to everybody, or cannot be made.
    """
    folder = Path(tempfile.gettempdir()) / f"{name}-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & stat.S_IWOTH:
            raise PermissionError(errno.EPERM, "it is not a folder of this user alone")
    except OSError as error:
        raise UsageError(
            f"the working folder cannot be used ({error.strerror})", where=str(folder), do="remove it, or set another TMPDIR"
        ) from error
    return folder

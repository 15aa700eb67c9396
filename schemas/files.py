"""Small files that are read whole: ordinary ones only, and never more than their limit."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from eroica.schemas.errors import InvalidInput


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """The content of *path*. Neither a pipe nor a device can hold the reader up, and a size that the system tells wrongly
    cannot fill the memory.

    :raises OSError: it cannot be read, or is no ordinary file.
    :raises InvalidInput: it is larger than *max_bytes*.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no ordinary file")
    with os.fdopen(fd, "rb") as file:
        raw = file.read(max_bytes + 1)
    if len(raw) > max_bytes:
        raise InvalidInput(f"the file is over {max_bytes} bytes", where=str(path))
    return raw

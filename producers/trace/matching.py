"""A regular expression of the user's over many names, within a time limit: some take for ever, and none can be told by its looks.

It runs in a child process with the standard library alone, which is ended when the time is over.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence

from eroica.schemas.errors import UsageError

MAX_PATTERN = 1_000
"""Characters of a pattern."""
TIMEOUT_S = 10.0
"""For all names together; a hundred thousand take a fraction of a second."""


def compiled(pattern: str, where: str) -> re.Pattern[str]:
    """*pattern*, checked.

    :raises UsageError: it is too long, no regular expression, or has no group.
    """
    if len(pattern) > MAX_PATTERN:
        raise UsageError(f"the pattern is over {MAX_PATTERN} characters", where=where)
    try:
        found = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"{pattern!r} is no regular expression ({error})", where=where) from error
    if found.groups < 1:
        raise UsageError(f"{pattern!r} has no group for the rank", where=where, do=r"e.g. --rank-from 'gpu(\d+)'")
    return found


def first_groups(pattern: str, texts: Sequence[str], where: str, timeout_s: float = TIMEOUT_S) -> list[str | None]:
    """The first group of *pattern*, searched in each of *texts*; None where it is not found, empty where the group is not.

    :raises UsageError: it takes longer than *timeout_s*.
    """
    asked = json.dumps({"pattern": pattern, "texts": list(texts)})
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _CHILD], input=asked, capture_output=True, text=True, timeout=timeout_s, check=True
        )
    except subprocess.TimeoutExpired as error:
        raise UsageError(
            f"{pattern!r} takes more than {timeout_s:g} s on the names of the files",
            where=where,
            do="write a simpler one, without repetitions inside repetitions",
        ) from error
    except subprocess.CalledProcessError as error:
        raise UsageError(f"{pattern!r} cannot be searched for", where=where, do="write a simpler one") from error
    groups: list[str | None] = json.loads(done.stdout)
    return groups


_CHILD = """
import json, re, sys
asked = json.load(sys.stdin)
search = re.compile(asked["pattern"]).search
found = (search(text) for text in asked["texts"])
json.dump([None if match is None else match.group(1) or "" for match in found], sys.stdout)
"""

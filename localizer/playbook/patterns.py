"""Patterns of playbook files: regular expressions that cannot run away, on short texts."""

from __future__ import annotations

import re
from functools import lru_cache

MAX_TEXT = 300
"""Characters of a name or frame that are looked at."""
MAX_REPEATS = 2
"""Unbounded repeats in a pattern: with k of them a search takes up to n^(k+1) steps."""


def problem(pattern: str) -> str:
    """Why *pattern* is refused; empty if it is fine.

    Only what a short search needs is allowed: no groups with ``?`` extensions, no references back, no repeated groups. So no
    pattern takes exponential time, whatever the text.
    """
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"not a regular expression ({error})"
    # Of each open group: repeats in the alternative that is being read, and most of those before.
    open_groups, inside, at, former = [[0, 0]], False, 0, ""
    while at < len(pattern):
        here = pattern[at]
        if here == "\\":
            if pattern[at + 1 : at + 2].isdigit():
                return "references back are not allowed"
            at, former = at + 2, "\\"
            continue
        if inside:
            inside = here != "]" or former == "["
        elif here == "[":
            inside = True
        elif here == "(":
            if pattern[at + 1 : at + 2] == "?":
                return "groups that begin with (? are not allowed"
            open_groups.append([0, 0])
        elif here == ")":
            most = max(open_groups.pop())
            open_groups[-1][0] += most
        elif here == "|":
            open_groups[-1] = [0, max(open_groups[-1])]
        elif here in "*+{":
            if former == ")":
                return "a group must not be repeated"
            open_groups[-1][0] += 1
        former, at = here, at + 1
    return f"more than {MAX_REPEATS} repeats in a row" if max(open_groups[0]) > MAX_REPEATS else ""


@lru_cache(maxsize=4_096)
def compiled(pattern: str) -> re.Pattern[str]:
    """The pattern, which :func:`problem` accepts."""
    return re.compile(pattern, re.ASCII)


def found(pattern: str, text: str) -> bool:
    """Whether *text* holds *pattern*."""
    return compiled(pattern).search(text[:MAX_TEXT]) is not None


def fits(pattern: str, text: str) -> bool:
    """Whether all of *text* fits *pattern*."""
    return compiled(pattern).fullmatch(text[:MAX_TEXT]) is not None


def in_stack(pattern: str, stack: str) -> bool:
    """Whether a frame of *stack* (joined by ``;``) holds *pattern*. At most the innermost 200 frames are looked at."""
    return any(found(pattern, frame) for frame in stack.split(";")[-200:] if frame)

"""What is given in place of a trace is refused at once: pipes, devices, files that keep a reader busy, patterns without end."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from eroica.producers.trace import matching
from eroica.producers.trace.frontend import open_workers
from eroica.producers.trace.listing import RankRule, list_traces
from eroica.producers.trace.reader import MAX_EVENT_BYTES, _Reader, read_trace
from eroica.schemas.errors import InvalidInput, UsageError

pytestmark = [pytest.mark.unit, pytest.mark.timeout(60)]


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**31)


def _spaces(path: Path) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(160):
            file.write(b" " * 2**20)


def _one_event_without_end(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b'{"traceEvents":[{"name":"')
        file.truncate(MAX_EVENT_BYTES + 2**21)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (os.mkfifo, "no ordinary file"),
        (lambda path: path.symlink_to("/dev/zero"), "no ordinary file"),
        (lambda path: path.symlink_to("/dev/null"), "no ordinary file"),
        (_sparse, "it is not JSON"),
        (_spaces, "no event ends within|one compressed byte gives more"),
        (_one_event_without_end, "no event ends within"),
    ],
    ids=["fifo", "zero", "null", "sparse", "spaces", "endless"],
)
def test_it_is_refused_with_a_sentence(tmp_path: Path, make: Callable[[Path], object], says: str) -> None:
    path = tmp_path / "trace.json"
    make(path)
    with pytest.raises(InvalidInput, match=says):
        list(open_workers(path))


@pytest.mark.parametrize("kind", ["fifo", "null"])
def test_a_pipe_or_a_device_is_no_missing_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "trace.json"
    os.mkfifo(path) if kind == "fifo" else path.symlink_to("/dev/null")
    with pytest.raises(InvalidInput, match="neither an ordinary file nor a folder"):
        list_traces(path)


def test_what_has_no_end_is_looked_at_a_few_times_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.json"
    _one_event_without_end(path)
    looked: list[int] = []
    real = _Reader._next
    monkeypatch.setattr(_Reader, "_next", lambda self, buffer: looked.append(len(buffer)) or real(self, buffer))
    with pytest.raises(InvalidInput):
        read_trace(path)
    assert sum(looked) < 4 * MAX_EVENT_BYTES


@pytest.mark.parametrize("pattern", [r"(.*)*\1x", r"((a+)+)+$", r"(.*.*.*.*.*.*.*.*)x"])
def test_a_pattern_without_end_is_ended(tmp_path: Path, pattern: str) -> None:
    name = "a" * 200
    (tmp_path / f"{name}!.json").write_text("{}")
    assert matching.TIMEOUT_S <= 10
    with pytest.raises(UsageError, match="takes more than 1 s"):
        matching.first_groups(pattern, [f"{name}!.json"], "--rank-from", timeout_s=1.0)


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("(" * 900, "no regular expression"),
        ("(a){99999999999999999999}", "no regular expression"),
        ("(a)" + "b" * 1_000, "over 1000 characters"),
    ],
)
def test_a_pattern_that_cannot_be_compiled_is_one_sentence(pattern: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        RankRule.parse([], pattern)


def test_names_of_any_bytes_are_searched(tmp_path: Path) -> None:
    texts = ["gpu7/x.json", "none", "gpu\udcff8", "ä-gpu9"]
    groups = matching.first_groups(r"gpu\D?(\d+)?", texts, "--rank-from")
    assert groups == [m and (m.group(1) or "") for m in (re.search(r"gpu\D?(\d+)?", text) for text in texts)]
    assert groups[1] is None

"""Which records belong to a recorded job."""

from __future__ import annotations

import pytest

from eroica.bus import Incoming
from eroica.offline.record import JobFilter
from eroica.schemas.codec import encode
from eroica.schemas.summaries import CloseClass

pytestmark = pytest.mark.unit


def close(job: str) -> bytes:
    return encode(CloseClass(job=job, request="r", cls="all", closed_by="idle"))


def test_feedback_on_any_job_is_kept_for_it_counts_for_all() -> None:
    assert JobFilter("train")("feedback", Incoming("x", 0, 0, b"another", b"{}", (), 0))


@pytest.mark.parametrize(
    ("job", "key", "value", "mine"),
    [
        ("train", b"train", close("train"), True),
        ("train", b"train/r/all", close("train"), True),
        ("train", b"trainer/r/all", close("trainer"), False),
        ("train", b"other/train", close("other"), False),
        ("train", None, close("train"), False),
        ("train", b"train/r/all", b"\xff not ours", True),
        ("a/b", b"a_b/r/all", close("a/b"), True),
        ("a/b", b"a_b/r/all", close("a_b"), False),
        ("a_b", b"a_b/r/all", close("a/b"), False),
        ("a_b", b"a_b/r/all", b"unreadable", True),
        ("a_b", b"a_b/r/all", None, True),
    ],
)
def test_the_key_decides_and_where_it_cannot_the_message(job: str, key: bytes | None, value: bytes | None, mine: bool) -> None:
    assert JobFilter(job)("summaries", Incoming("x", 0, 0, key, value, (), 0)) is mine

"""A message that waits too long is said; partitions that were quiet, however long, are not."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import pytest

from eroica.schemas.settings import KafkaSettings

faust = pytest.importorskip("faust")
pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("waited_s", "acked", "said"),
    [
        ([], False, []),
        ([0, 299], False, []),
        ([5, 301, 400], False, ["3 messages wait, the oldest (t, partition 2, offset 2) for 400 s"]),
        ([301], True, []),
    ],
)
def test_who_waits_is_said(
    waited_s: list[int], acked: bool, said: list[str], tmp_path: Path, own_log: pytest.LogCaptureFixture
) -> None:
    from faust.types.tuples import Message

    from eroica.streams.app import faust_app

    async def check() -> None:
        consumer = faust_app(KafkaSettings(bootstrap="127.0.0.1:1"), "test", tmp_path).consumer
        messages = [
            Message(topic="t", partition=2, offset=number, timestamp=0.0, timestamp_type=0, headers={}, key=b"k", value=b"v",
                    checksum=b"", time_in=time.monotonic() - waited)
            for number, waited in enumerate(waited_s)
        ]  # fmt: skip
        for message in messages:
            consumer.track_message(message)
            message.acked = acked
        for _ in range(3):
            await consumer.verify_all_partitions_active()

    with own_log.at_level(logging.ERROR):
        asyncio.run(check())
    assert own_log.messages == said

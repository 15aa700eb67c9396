"""After which ends a worker begins anew."""

from __future__ import annotations

import asyncio

import pytest

from eroica.streams.service import lost_broker

errors = pytest.importorskip("aiokafka.errors")
pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("reason", "lost"),
    [
        (errors.KafkaConnectionError("no broker"), True),
        (errors.NodeNotReadyError(), True),
        (errors.RequestTimedOutError(), True),
        (ConnectionResetError(), True),
        (asyncio.TimeoutError(), True),
        (errors.TopicAuthorizationFailedError(), False),
        (errors.IllegalStateError(), False),
        (ValueError("a mistake of ours"), False),
        (FileNotFoundError("a mistake of ours"), False),
    ],
)
def test_only_the_loss_of_the_broker_makes_a_worker_begin_anew(reason: BaseException, lost: bool) -> None:
    assert lost_broker(reason) is lost

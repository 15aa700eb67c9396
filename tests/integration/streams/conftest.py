"""Lets the tests of this folder import their kit; processes and a prefix of their own for each test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from services_kit import Bench, Broker


@pytest.fixture
def bench(broker: Broker, prefix: str) -> Iterator[Bench]:
    bench = Bench(broker, prefix, session_ms=3_000)
    yield bench
    bench.close()


@pytest.fixture
def kafka_bench(kafka: Broker, prefix: str) -> Iterator[Bench]:
    """For tests in which a member is killed."""
    bench = Bench(kafka, prefix, session_ms=6_000)
    yield bench
    bench.close()


@pytest.fixture
def calm_bench(kafka: Broker, prefix: str) -> Iterator[Bench]:
    """For tests in which nobody dies: no member is taken for dead either, so nothing is said twice."""
    bench = Bench(kafka, prefix, session_ms=24_000)
    yield bench
    bench.close()

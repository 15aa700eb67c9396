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
    bench = Bench(broker, prefix)
    yield bench
    bench.close()


@pytest.fixture
def kafka_bench(kafka: Broker, prefix: str) -> Iterator[Bench]:
    bench = Bench(kafka, prefix)
    yield bench
    bench.close()

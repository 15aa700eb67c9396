"""Scenarios that nobody wrote: each gives messages of the schema and a truth, or one sentence on what does not fit."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eroica.schemas.codec import decode, encode
from eroica.schemas.errors import EroicaError
from eroica.schemas.ranks import parse_ranks
from eroica.schemas.summaries import Summary
from eroica.simulator.faults import FAULTS
from eroica.simulator.hangs import HANGS
from eroica.simulator.messages import Emission
from eroica.simulator.simulation import Simulation
from eroica.simulator.source import parse_scenario
from eroica.simulator.truth import labels
from eroica.topology.presets import FRAMEWORKS
from eroica.topology.schedules import SCHEDULES

pytestmark = pytest.mark.unit

SMALL = st.sampled_from([1, 1, 2, 4])
SIZES = ("tp", "pp", "cp", "ep", "dp_replicate")
PLACES: list[dict[str, Any]] = [
    {"ranks": "0"},
    {"ranks": "1,3"},
    {"hosts": "0"},
    {"hosts": "0-1"},
    {"racks": "0"},
    {"stages": [-1]},
]
FAULT = st.fixed_dictionaries(
    {"fault": st.sampled_from([*FAULTS, *FAULTS, *HANGS])},
    optional={
        "dose": st.sampled_from([1.02, 1.3, 4.0]),
        "strength": st.sampled_from([0.01, 1.0, 100.0]),
        "at": st.sampled_from(PLACES),
    },
)
SCENARIO = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 1000),
        "job": st.fixed_dictionaries(
            {
                "world": st.sampled_from([1, 2, 8, 16, 16, 24]),
                "framework": st.sampled_from([*FRAMEWORKS]),
                "sizes": st.dictionaries(st.sampled_from(SIZES), SMALL, max_size=3),
                "schedule": st.sampled_from([*SCHEDULES]),
                "chunks": st.sampled_from([1, 1, 2]),
                "micro_batches": st.sampled_from([1, 2, 8]),
                "sharding": st.integers(0, 3),
                "buckets": st.sampled_from([1, 3]),
                "model": st.fixed_dictionaries(
                    {
                        "layers_per_stage": st.sampled_from([1, 3]),
                        "experts": st.booleans(),
                        "expert_spread": st.sampled_from([0, 0.3]),
                        "length_spread": st.sampled_from([0, 0.3]),
                        "loading_ms": st.sampled_from([0, 2]),
                        "optimizer_ms": st.sampled_from([0, 6]),
                        "parameter_mb": st.sampled_from([0, 100]),
                        "activation_mb": st.sampled_from([0, 30]),
                        "exchange_mb": st.sampled_from([0, 30]),
                    }
                ),
            }
        ),
        "cluster": st.fixed_dictionaries(
            {"gpus_per_host": st.sampled_from([1, 4, 8]), "hosts_per_rack": st.sampled_from([1, 4])}
        ),
        "noise": st.sampled_from(["none", "production", "noisy"]),
        "profile": st.fixed_dictionaries(
            {"steps": st.sampled_from([1, 3]), "sampling": st.booleans(), "max_slot_values": st.sampled_from([1, 5, 128])}
        ),
        "history": st.fixed_dictionaries(
            {"before": st.sampled_from([0, 1, 20]), "after": st.sampled_from([0, 3, 20]), "baseline": st.booleans()}
        ),
        "nuisance": st.fixed_dictionaries(
            {k: st.sampled_from([0, 0, 0.5, 1]) for k in ("missing", "duplicate", "late", "late_start", "truncated", "errors")}
        ),
        "faults": st.lists(FAULT, max_size=2),
    }
)


@given(SCENARIO)
@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
def test_any_scenario_is_simulated_or_refused_in_a_sentence(tree: dict[str, Any]) -> None:
    try:
        simulation = Simulation(parse_scenario(json.dumps(tree)))
        emission = Emission(simulation)
    except EroicaError as error:
        assert str(error)
        return
    truth = json.loads(json.dumps(labels(simulation, emission.request.request)))
    assert len(truth["causes"]) == len(tree["faults"])
    for cause in truth["causes"]:
        ranks = parse_ranks(cause["suspects"]["ranks"])
        assert ranks.size == 0 or ranks.max() < simulation.work.world
    for output in emission.all():
        assert decode(output.topic, encode(output.message)) == output.message
        if isinstance(output.message, Summary):
            assert all(d >= 0 for c in output.message.communicators for s in c.slots for d in s.duration_us)
            assert all(p.beta <= 1.0 + 1e-6 for p in output.message.functions)


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda b: b.decode("latin-1")))
@settings(max_examples=200)
def test_any_text_is_a_scenario_or_refused(text: str) -> None:
    try:
        parse_scenario(text)
    except EroicaError as error:
        assert str(error)

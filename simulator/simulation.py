"""A scenario made ready: the job laid out, the faults placed and given their strength."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from eroica.schemas.errors import UsageError
from eroica.schemas.ids import stable_id
from eroica.simulator.calibrate import strength_for
from eroica.simulator.effects import BoolArray, Effects
from eroica.simulator.engine import Engine, Run
from eroica.simulator.faults import Context, FaultKind, fault_kind, replicas
from eroica.simulator.hangs import HANGS, Hang, place_hang
from eroica.simulator.noise import noise_of
from eroica.simulator.problem import ScenarioError
from eroica.simulator.scenario import Fault, Scenario
from eroica.simulator.targets import locate
from eroica.simulator.workload import Workload, build_workload

__all__ = ["PlacedFault", "Simulation"]

MAX_FAULTS = 16


@dataclass(frozen=True)
class PlacedFault:
    """A fault with its place and strength."""

    kind: FaultKind
    ranks: BoolArray
    other: BoolArray
    strength: float
    effects: Effects
    dose: float | None


class Simulation:
    """A job that can be run healthy and broken. Deterministic in the scenario and the seed."""

    def __init__(self, scenario: Scenario, seed: int | None = None, engine: Engine | None = None) -> None:
        """Lay out and calibrate.

        :param engine: of an equal job on an equal cluster, to save building it again.
        :raises EroicaError: whatever does not fit, with the field.
        """
        self.scenario = scenario
        self.seed = scenario.seed if seed is None else seed
        if self.seed < 0:
            raise UsageError("a seed is not negative", where="--seed")
        self.engine = engine or Engine(build_workload(scenario))
        self.work: Workload = self.engine.work
        self.noise = noise_of(scenario.noise)
        self.steps = scenario.profile.steps
        self.healthy = self._ordinary()
        self.healthy_step_us = self.engine.mean_step_us(self.healthy)
        self.hang: Hang | None = None
        self.faults: list[PlacedFault] = []
        self.broken = self.healthy
        self._place()
        self.run_id = self._run_id()

    def _run_id(self) -> str:
        """From all that the scenario says: two that differ in anything are two launches, also on one broker."""
        content = msgspec.structs.replace(self.scenario, seed=self.seed)
        return stable_id("run", self.scenario.job.name, msgspec.json.encode(content, order="sorted").decode())

    def run_healthy(self) -> Run:
        """The profiled steps without the faults."""
        return self.engine.run(self.healthy, self.noise, self.seed * 2, machines=self.seed * 2 + 1)

    def run_broken(self) -> Run:
        """The profiled steps with the faults."""
        return self.engine.run(self.broken, self.noise, self.seed * 2 + 1)

    def _ordinary(self) -> Effects:
        """What varies in a healthy job: lengths of sequences, tokens of experts."""
        model, work = self.scenario.job.model, self.work
        out = Effects(work.world, self.steps)
        rng = np.random.default_rng([self.seed, 4])
        if model.length_spread:
            number = replicas(work)
            drawn = rng.standard_normal((int(number.max()) + 1, self.steps))[number]
            factor = np.clip(1.0 + model.length_spread * drawn, 0.5, 2.0)
            for resource in ("sm", "expert", "hbm"):
                out.slow(resource, factor)
        if model.experts and model.expert_spread:
            coordinates = [v for a, v in work.layout.coordinates().items() if a not in ("tp", "etp", "model")]
            _, number = np.unique(np.stack(coordinates), axis=1, return_inverse=True)
            drawn = rng.standard_normal((int(number.max()) + 1, self.steps))[number.reshape(-1)]
            out.slow("expert", np.clip(1.0 + model.expert_spread * drawn, 0.2, 3.0))
        return out

    def _place(self) -> None:
        faults = self.scenario.faults
        if len(faults) > MAX_FAULTS:
            raise ScenarioError(f"{len(faults)} faults at once are more than {MAX_FAULTS}", "faults")
        hangs = [f for f in faults if f.fault in HANGS]
        if hangs and len(faults) > 1:
            raise ScenarioError("a job that hangs has one fault only", "faults")
        if hangs:
            self.hang = place_hang(self.work, hangs[0], np.random.default_rng([self.seed, 5]))
            return
        for number, fault in enumerate(faults):
            placed = self._placed(number, fault)
            self.faults.append(placed)
            self.broken = self.broken.merged(placed.effects)

    def _placed(self, number: int, fault: Fault) -> PlacedFault:
        at = f"faults.{number}"
        kind = fault_kind(fault.fault, f"{at}.fault", tuple(HANGS))
        if fault.dose is not None and fault.strength is not None:
            raise ScenarioError("give a dose or a strength, not both", f"{at}.strength", f"{at}.dose")
        if kind.target == "stage" and self.work.rank_of.shape[0] < 2:
            raise ScenarioError("the job has no pipeline", f"{at}.fault", "job", do="give job.sizes a pp")
        seed = (self.seed, 6, number)
        ranks, other = locate(self.work, kind, fault.at, np.random.default_rng(seed), f"{at}.at")
        context = Context(self.work, ranks, other, self.steps, self.healthy_step_us, seed)

        def step_us(strength: float) -> float:
            return self.engine.mean_step_us(self.healthy.merged(kind.make(context, strength)))

        strength = fault.strength if fault.strength is not None else kind.default
        if fault.dose is not None:
            strength = strength_for(fault.dose, step_us, self.healthy_step_us, kind.default, f"{at}.dose")
        return PlacedFault(kind, ranks, other, strength, kind.make(context, strength), fault.dose)

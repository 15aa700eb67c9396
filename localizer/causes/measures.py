"""What all causes look at: measured once a frame."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from eroica.localizer.causes.places import RowsOfHosts
from eroica.localizer.causes.sick import sick_rows
from eroica.localizer.frame import Floats, Frame, Ints
from eroica.localizer.growth import grown_us
from eroica.localizer.own import OwnTime, Past, measure_own, phase_table
from eroica.localizer.robust import row_medians
from eroica.localizer.stepmodel import StepModel, step_model
from eroica.localizer.transfers import Transfers, measure_transfers
from eroica.schemas.settings import LocalizeSettings

CPU = "cpu"
"""The device of workers that train without an accelerator."""
SHORT_OF_CPU = {"cpu_pressure": 0.10, "job_cpu_pressure": 0.10, "cpu_steal": 0.05, "cpu_busy": 0.90}
"""Reading → share from which on work waits for a CPU."""


@dataclass(frozen=True)
class Measures:
    """A frame with its own times, step model and transfers."""

    frame: Frame
    settings: LocalizeSettings
    past: Past | None

    @cached_property
    def own(self) -> OwnTime:
        """Own times by step."""
        # Who is missing may be the one that grew.
        grown = 0.0 if self.frame.missing.size else self.grown_us
        return measure_own(self.frame, self.settings.outlier_z, self.past, sick_rows(self.frame), grown)

    @cached_property
    def grown_us(self) -> float:
        """What a step takes longer than the job's iterations did before, µs (``growth.grown_us``)."""
        return grown_us(self.frame)

    @cached_property
    def model(self) -> StepModel:
        """How own times make a step."""
        return step_model(self.frame)

    @cached_property
    def transfers(self) -> Transfers:
        """Transfers by communicator."""
        return measure_transfers(self.frame, self.past.transfers if self.past else None)

    @cached_property
    def step_us(self) -> float:
        """Mean length of a step."""
        return float(self.own.step_us.mean()) if self.own.step_us.size else 0.0

    @cached_property
    def lost_own_us(self) -> float:
        """Time of a step that is lost to ranks that are slower than usual in their role, whoever it is."""
        return self.model.gain_us(self.own.parts_us, np.minimum(self.own.parts_us, self.own.usual_parts_us))

    @cached_property
    def mean_parts_us(self) -> Floats:
        """``own.parts_us`` with every worker at the mean of all, step by step; not to be written to."""
        parts = self.own.parts_us
        return np.broadcast_to(parts.mean(axis=1, keepdims=True), parts.shape)

    @cached_property
    def lost_to_mean_us(self) -> float:
        """Time of a step that is lost against one in which every worker takes the mean own time."""
        return self.model.gain_us(self.own.parts_us, self.mean_parts_us)

    @cached_property
    def data_us(self) -> Floats:
        """What each worker waits for data in its median step, shape (n,), µs."""
        return row_medians(phase_table(self.frame, self.own.steps, ("data",)))

    @cached_property
    def between_hosts_us(self) -> Floats:
        """Transfers between hosts per step, waiting taken off, shape (n,), µs. One pass over all collectives."""
        all_ = self.frame.collectives
        if all_.size == 0:
            return np.zeros(self.frame.size)
        _, total = all_.transfers_of((self.transfers.host_count > 1)[all_.slots.communicator])
        return np.asarray(total / self.frame.steps_of)

    def share(self, time_us: float) -> float:
        """*time_us* as share of a step."""
        return time_us / self.step_us if self.step_us > 0 else 0.0

    @cached_property
    def rows_of_hosts(self) -> RowsOfHosts:
        """Host → its rows, ascending; hosts by their first row."""
        return RowsOfHosts(*self.frame.host_of)

    def peers(self, row: int, without: Ints) -> Ints:
        """Rows of the same role as *row*, less *without*."""
        rows = np.flatnonzero(self.frame.cls == self.frame.cls[row])
        return np.setdiff1d(rows, without)

    @cached_property
    def crowded(self) -> bool:
        """Whether training computes on the hosts' CPUs, and most of them are short or nobody measured whether they are.

        A thread that has to wait for a CPU differs from step to step in any phase.
        """
        if {self.frame.devices.names[i] for i in np.unique(self.frame.devices.code).tolist()} != {CPU}:
            return False
        table, short = self.frame.metrics, np.zeros(self.frame.size, bool)
        told = short.copy()
        for code, name in enumerate(table.names):
            limit = SHORT_OF_CPU.get(name.partition("[")[0])
            if limit is not None:
                at = np.flatnonzero(table.name == code)
                told[table.row[at]] = True
                short[table.row[at]] |= table.mean[at] >= limit
        return bool(np.mean(short | ~told) >= 0.5)


def ms(value_us: float) -> float:
    """µs → ms, as verdicts print it."""
    return round(float(value_us) / 1e3, 3)

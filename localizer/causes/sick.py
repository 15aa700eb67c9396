"""Readings that tell a machine which is not well from one that has more work: what its peers would show too, if it were the work.

A stage that is all of one host is slow in both cases, and nobody else has its role: only such a reading tells them apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from eroica.localizer.causes.readings import MAX_ODD_SHARE, OddReading
from eroica.localizer.frame import Floats, Frame, Ints
from eroica.localizer.reference import Bools
from eroica.localizer.tables import split_metric

RULE = "eroica/sick-host"


@dataclass(frozen=True, slots=True)
class Limit:
    """A reading is bad if it lies so far above that of the others; where ``ratio`` is below 1: so far below it."""

    name: str
    difference: float = 0.0
    ratio: float = 1.0
    value: float = 0.0
    """No less than this is bad."""

    def bad(self, values: Floats, usual: float) -> Bools:
        """Which of *values* are, shape as they."""
        if self.ratio < 1.0:
            return np.asarray(values < self.ratio * usual)
        return np.asarray((values >= self.value) & (values - usual >= self.difference) & (values >= self.ratio * usual))


LIMITS = (
    Limit("cpu_pressure", difference=0.2),
    Limit("cpu_busy", difference=0.2, value=0.9),
    Limit("cpu_steal", difference=0.05),
    Limit("cpu_foreign", difference=4.0, ratio=3.0),
    Limit("mem_pressure", difference=0.1),
    Limit("io_pressure", difference=0.2),
    Limit("gpu_foreign_processes", difference=0.5),
    Limit("sm_clock", ratio=0.93),
    Limit("sm_throttle", difference=0.1),
    Limit("pcie_width", ratio=0.8),
    Limit("pcie_gen", ratio=0.8),
    Limit("ecc_uncorrected", difference=1.0),
)
"""The playbook's own limits. Temperatures and use are not among them: a device with more work is hotter and busier."""


def sick_rows(frame: Frame) -> Bools:
    """Workers on hosts of which most tell of a bad reading, against the better quarter of all workers; shape (n,).

    What more than half of the workers show is how this job is.
    """
    out = np.zeros(frame.size, dtype=np.bool_)
    number, hosts = frame.host_of
    for code, limit in _limits(frame) if len(hosts) > 1 else ():
        at = np.flatnonzero((frame.metrics.name == code) & np.isfinite(frame.metrics.mean))
        if at.size == 0:
            continue
        row, value = frame.metrics.row[at], frame.metrics.mean[at]
        bad = limit.bad(value, float(np.quantile(value, 0.25 if limit.ratio >= 1.0 else 0.75)))
        if not bad.any() or bad.sum() > MAX_ODD_SHARE * at.size:
            continue
        told = np.bincount(number[row], minlength=len(hosts))
        out |= (2 * np.bincount(number[row[bad]], minlength=len(hosts)) > told)[number]
    return out


def sick_readings(frame: Frame, rows: Ints) -> list[OddReading]:
    """Readings of most of *rows* that are bad against those of all other workers."""
    table, found = frame.metrics, []
    inside = np.zeros(frame.size, dtype=np.bool_)
    inside[rows] = True
    for code, limit in _limits(frame):
        at = np.flatnonzero((table.name == code) & np.isfinite(table.mean))
        mine, others = at[inside[table.row[at]]], at[~inside[table.row[at]]]
        if 2 * np.unique(table.row[mine]).size <= rows.size or others.size == 0:
            continue
        value, usual = float(np.median(table.mean[mine])), float(np.median(table.mean[others]))
        if limit.bad(np.array([value]), usual).all():
            found.append(OddReading(table.names[code], "host", np.unique(table.row[mine]), value, usual))
    return found


def _limits(frame: Frame) -> list[tuple[int, Limit]]:
    """The readings that this page knows, by their number in the frame."""
    by_name = {one.name: one for one in LIMITS}
    plain = [split_metric(full)[1] for full in frame.metrics.names]
    return [(code, by_name[name]) for code, name in enumerate(plain) if name in by_name]

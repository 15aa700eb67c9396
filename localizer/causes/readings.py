"""Counters of hosts and devices that differ from those of the peers: what tells the end of a link that is at fault."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from eroica.localizer.frame import Floats, Frame, Ints
from eroica.localizer.judgement import name_rows
from eroica.localizer.robust import spread_of
from eroica.localizer.tables import split_metric
from eroica.schemas.verdicts import Evidence

ODD_SPREADS = 8.0
"""A reading is odd so many spreads from the median …"""
ODD_SHARE = 0.25
"""… and by this share of it (of the largest, where the usual is nothing)."""
MAX_ODD_SHARE = 0.5
"""What more than half of all workers show is not odd."""
USUAL_QUANTILE = 0.25
MAX_SHOWN = 5
LINK_READINGS: tuple[tuple[str, str, str], ...] = (
    (r"nvlink.*(active|links|up|width)", "nvlink", "low"),
    (r"nvlink.*(err|crc|replay|recover|retrans)", "nvlink", "high"),
    (r"(nic|ib|rdma|roce|link).*(link|rate|speed|width|up|active|state)", "nic", "low"),
    (r"(nic|ib|rdma|roce|net).*(retrans|err|discard|drop|crc|symbol|downed|recover|pause|pfc|cnp|ecn|out_of)", "nic", "high"),
)
"""Names of readings (regular expressions), what they tell of, and in which direction they are bad."""


@dataclass(frozen=True, slots=True)
class OddReading:
    """A counter that is bad on some rows."""

    name: str
    medium: str
    rows: Ints
    value: float
    usual: float


def odd_link_readings(frame: Frame) -> list[OddReading]:
    """Readings about links in which some workers are worse than the rest, by name."""
    table, found = frame.metrics, []
    for code, name in enumerate(table.names):
        told = _about(name)
        if told is None:
            continue
        at = np.flatnonzero(table.name == code)
        if at.size < 3:
            continue
        rows, values = table.row[at], table.mean[at]
        medium, bad = told
        out = _odd(values if bad == "high" else -values)
        # Two hosts of four stay a half when one of their workers gave no summary.
        if 0 < out.size <= max(1, int(MAX_ODD_SHARE * (rows.size + frame.missing.size))) and out.size < rows.size:
            usual = float(np.median(np.delete(values, out)))
            found.append(OddReading(name, medium, np.unique(rows[out]), float(np.median(values[out])), usual))
    return found


def tells_of(frame: Frame, medium: str) -> bool:
    """Whether some worker has counters of links of that medium."""
    return any(told is not None and told[0] == medium for told in map(_about, frame.metrics.names))


def _about(name: str) -> tuple[str, str] | None:
    plain = split_metric(name)[1].lower()
    return next(((medium, bad) for pattern, medium, bad in LINK_READINGS if re.search(pattern, plain)), None)


def _odd(values: Floats) -> Ints:
    """Which values lie far above those of the better half; a pair of hosts may be half of a small job."""
    usual = float(np.quantile(values, USUAL_QUANTILE))
    better = values[values <= np.median(values)]
    spread = spread_of(better)
    scale = abs(usual) if usual else float(np.abs(values).max(initial=0.0))
    return np.flatnonzero((values - usual > ODD_SPREADS * spread) & (values - usual > ODD_SHARE * scale) & (values > usual))


def reading_evidence(frame: Frame, odd: list[OddReading], rule: str) -> list[Evidence]:
    """What people see of them, the first few."""
    return [
        Evidence(
            kind="metric", metric=o.name.partition("[")[0], subject=name_rows(frame, o.rows), value=round(o.value, 4),
            unit=o.name.partition("[")[2].rstrip("]"), expected=round(o.usual, 4),
            score=round(o.value / o.usual, 3) if o.usual else round(o.value, 3),
            score_kind="ratio" if o.usual else "value", rule=rule, compared_with="all other workers",
        )
        for o in odd[:MAX_SHOWN]
    ]  # fmt: skip

"""A job's own healthy past: what is usual for all, where no peer can show it."""

from __future__ import annotations

import hashlib

import numpy as np

from eroica.localizer.frame import Frame
from eroica.localizer.own import measure_own
from eroica.localizer.profile import exclusive_table, function_label
from eroica.localizer.stepmodel import step_model
from eroica.localizer.transfers import kind_keys, weighted_medians
from eroica.schemas.groups import FunctionName
from eroica.schemas.memory import Baseline
from eroica.schemas.ranks import format_ranks

MAX_FUNCTIONS, MAX_TRANSFERS = 200, 500
"""Entries of a baseline: those that take longest."""
MAX_RANKS = 4_096
"""Ranks of a class whose own times are kept one by one."""


def function_key(function: FunctionName) -> str:
    """A function by category and name, as a person reads it."""
    return f"{function.category}: {function_label(function)}"[:300]


def fingerprint(frame: Frame) -> str:
    """Digest of what must be equal for two profiles to be comparable: the world, its classes, and what they communicate."""
    all_ = frame.collectives
    slots = sorted({(all_.communicators[c].kind, all_.slots.kinds[k], b) for c, k, b in all_.done()})
    text = repr((int(frame.expected.size), sorted(frame.request.classes), slots))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def baselines_of(frame: Frame) -> list[Baseline]:
    """A healthy frame as messages, one a class."""
    own = measure_own(frame, 3.5)
    model = step_model(frame)
    busy = float(model.step_us(own.parts_us).mean()) if own.steps.size else 0.0
    lost = model.gain_us(own.parts_us, np.minimum(own.parts_us, own.usual_parts_us))
    digest, transfers = fingerprint(frame), _transfers(frame)
    out = []
    for number, cls in enumerate(frame.classes):
        rows = np.flatnonzero(frame.cls == number)
        if rows.size == 0 or own.steps.size == 0:
            continue
        table = np.median(exclusive_table(frame, rows), axis=0)
        functions: dict[str, float] = {}
        for i in np.flatnonzero(table > 0).tolist():
            key = function_key(frame.functions[i])
            functions[key] = functions.get(key, 0.0) + float(table[i])
        longest = sorted(functions.items(), key=lambda item: (-item[1], item[0]))[:MAX_FUNCTIONS]
        out.append(
            Baseline(
                job=frame.request.job,
                cls=cls,
                request=frame.request.request,
                fingerprint=digest,
                event_time_us=frame.request.issued_at_us,
                step_us=round(float(own.step_us[rows].mean()), 1),
                own_us=round(float(np.median(own.own_us[rows])), 1),
                once_us=round(float(np.median(own.parts_us[0, rows])), 1),
                ranks=format_ranks(frame.ranks[rows]) if rows.size <= MAX_RANKS else "",
                own_by_rank_us=np.median(own.own_us[rows], axis=1).round(1).tolist() if rows.size <= MAX_RANKS else [],
                spread_us=round(float(np.median(own.spread_us[rows])), 1),
                busy_us=round(busy, 1),
                lost_us=round(lost, 1),
                functions={name: round(value, 1) for name, value in longest},
                transfers=transfers,
            )
        )
    return out


def _transfers(frame: Frame) -> dict[str, float]:
    if frame.collectives.size == 0:
        return {}
    m = frame.meetings
    keys = kind_keys(frame, m)
    names = sorted(set(keys))
    number = {name: i for i, name in enumerate(names)}
    whole = np.flatnonzero(m.members > 1)
    group = np.array([number[k] for k in keys], dtype=np.int64)[whole]
    found, middle = weighted_medians(group, m.transfer_us[whole], np.ones(whole.size))
    total = np.bincount(group, m.transfer_us[whole], minlength=len(names))
    kept = sorted(zip(found.tolist(), middle.tolist(), strict=True), key=lambda item: (-total[item[0]], item[0]))[:MAX_TRANSFERS]
    return {names[i]: round(value, 1) for i, value in sorted(kept)}

"""Own time, communication and functions: a worker against its peers, a stage against the others, the job against its past."""

from __future__ import annotations

import numpy as np

from eroica.localizer.causes.measures import ms
from eroica.localizer.causes.slow import agreement
from eroica.localizer.causes.stages import heavy_stage
from eroica.localizer.explain.registry import Explanation, Item, Unexplained, number, register
from eroica.localizer.frame import Floats
from eroica.localizer.own import Past
from eroica.localizer.past import function_key
from eroica.localizer.profile import WAITING_CATEGORY, exclusive_table, function_label
from eroica.localizer.rules.functions import excess_table


def _by_median(table: Floats) -> Floats:
    """µs by worker and step → ms in the median step."""
    return np.asarray(np.median(table, axis=1) / 1e3)


def _role(item: Item, row: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.flatnonzero(item.frame.cls == item.frame.cls[row])


@register("eroica/own-time", "own time per step")
def own_time(item: Item) -> Explanation:
    """Step less exposed communication, in the median step."""
    own, row = item.measures.own, item.one()
    mine = _by_median(own.step_us - own.wait_us)
    columns = {
        "own time, ms": mine,
        "usual in the role, ms": _by_median(own.usual_us),
        "step, ms": _by_median(own.step_us),
        "exposed communication, ms": _by_median(own.wait_us),
        "excess, ms": own.excess_us / 1e3,
        "z": own.z,
    }
    return Explanation(
        "value: own time (step less exposed communication) in the median step; expected: what is usual in the role, step by "
        "step; score: z, the excess in robust standard deviations of the role",
        ("", *columns),
        item.by_rank(columns, peers=_role(item, row)),
        ms(float(np.median((own.step_us - own.wait_us)[row]))),
        ms(float(np.median(own.usual_us[row]))),
        round(float(own.z[row]), 2),
    )


@register("eroica/steps-agree", "exposed communication per step")
def communication(item: Item) -> Explanation:
    """The culprit waits least; and how often it is the slowest."""
    own, row, suspects = item.measures.own, item.one(), item.rows_in(f"ranks {item.cause.suspects.ranks}")
    waits = np.median(own.wait_us, axis=1)
    apart = own.own_us - own.usual_us
    slowest = np.zeros(item.frame.size)
    for role in np.unique(item.frame.cls[suspects]).tolist():
        peers = np.flatnonzero(item.frame.cls == role)
        slowest += np.bincount(peers[apart[peers].argmax(axis=0)], minlength=item.frame.size)
    columns = {"exposed communication, ms": waits / 1e3, "steps in which it is the slowest of its role": slowest}
    return Explanation(
        "value: exposed communication in the median step; expected: median of the peers; "
        f"score: share of the {own.steps.size} steps in which the slowest of the role is a suspect",
        ("", *columns),
        item.by_rank(columns),
        ms(float(waits[row])),
        ms(float(np.median(waits[item.peers]))) if item.peers.size else 0.0,
        round(agreement(item.measures, suspects), 3),
    )


@register("*", "exclusive time per step")
def function_time(item: Item) -> Explanation:
    """A function on the critical path, over all call sites that read alike."""
    row, frame = item.one(), item.frame
    table = exclusive_table(frame, np.arange(frame.size))
    found: list[tuple[float, str, Floats]] = []
    for category in sorted({f.category for f in frame.functions} - {WAITING_CATEGORY}):
        which = [i for i, f in enumerate(frame.functions) if f.category == category and function_label(f) == item.label]
        if which:
            each = np.asarray(table[:, which].sum(axis=1) / 1e3)
            found.append((abs(float(each[row]) - item.evidence.value), category, each))
    if not found or item.peers.size == 0:
        raise Unexplained("the recording holds no such function, or no peers", where=item.evidence.subject[:100])
    _, category, each = min(found, key=lambda f: f[:2])
    value, usual = float(each[row]), float(np.median(each[item.peers]))
    return Explanation(
        f"value: time of the function ({category}) on the critical path, all steps together over their number; expected: median "
        "of the peers; score: value over expected",
        ("", "time per step, ms"),
        item.by_rank({"time per step, ms": each}),
        round(value, 3),
        round(usual, 3),
        round(value / usual, 3) if usual > 0 else round(value, 3),
    )


@register("eroica/functions", "time per step above the peers, all functions")
def all_functions(item: Item) -> Explanation:
    """Without collectives: what a worker spends above the median of its role, over all functions."""
    row = item.one()
    excess, z, _ = excess_table(item.frame, item.judged.settings)
    columns = {"above the median of the role, ms": excess / 1e3, "z": z}
    return Explanation(
        "value: time per step above the median of the role, summed over the functions in which it is above; expected: none; "
        "score: its robust z within the role",
        ("", *columns),
        item.by_rank(columns, peers=_role(item, row)),
        ms(float(excess[row])),
        0.0,
        round(float(z[row]), 2),
    )


@register("eroica/stages", "own time per step")
def stage_time(item: Item) -> Explanation:
    """A stage against the others."""
    if item.measures.model.stages < 2 or item.measures.own.steps.size == 0:
        raise Unexplained("the recording holds no stages", where=item.evidence.subject[:100])
    found = heavy_stage(item.measures)
    level = found.level_us
    heavy = int("".join(c for c in item.evidence.subject if c.isdigit()) or -1)
    if heavy != found.stage:
        raise Unexplained("the recording holds no such stage", where=item.evidence.subject[:100])
    rows: list[tuple[str, ...]] = [
        (f"{'→ ' if s == heavy else ''}stage {s}", number(value / 1e3)) for s, value in enumerate(level.tolist())
    ]
    return Explanation(
        f"value: usual own time of the stage; expected: "
        f"{'as in its healthy profile, grown like the others' if found.since_past else 'mean of the other stages'}; "
        "score: value over the mean of all stages",
        ("", "usual own time, ms"),
        rows,
        ms(level[heavy]),
        ms(found.expected_us),
        round(float(level[heavy] / max(level.mean(), 1e-9)), 3),
    )


def _past(item: Item) -> Past:
    if item.judged.past is None:
        raise Unexplained("the recording holds no healthy profile of the job", where=item.evidence.compared_with[:100])
    return item.judged.past


@register("eroica/past", "usual own time per step")
def against_past(item: Item) -> Explanation:
    """All ranks, or those of a host, against the healthy profile."""
    past, own, frame = _past(item), item.measures.own, item.frame
    now = np.median(own.usual_us, axis=1)
    then = np.array([past.own_us.get(frame.classes[c], np.nan) for c in frame.cls.tolist()])
    host = item.evidence.subject.removeprefix("host ") if item.evidence.subject.startswith("host ") else ""
    rows = np.array([r for r, name in enumerate(frame.hosts) if not host or name == host], dtype=np.int64)
    columns = {"usual own time, ms": now / 1e3, "in the healthy profile, ms": then / 1e3, "ratio": now / then}
    if host:
        lead = int(rows[np.argmax((now - then)[rows])])
        value, expected, score = float(now[lead]), float(then[lead]), float(now[lead] / max(then[lead], 1e-9))
        how = "the rank of the host that grew most"
    else:
        value, expected, score = float(np.median(now)), float(np.median(then)), float(np.median(now / np.maximum(then, 1e-9)))
        how = "median of all ranks"
    return Explanation(
        f"value: usual own time in the role, {how}; expected: the same in the healthy profile {past.request}; score: their ratio",
        ("", *columns),
        item.by_rank(columns, peers=rows if not host else np.empty(0, np.int64), subject=rows if host else rows[:0]),
        ms(value),
        ms(expected),
        round(score, 3),
    )


@register("eroica/past", "exclusive time per step")
def function_against_past(item: Item) -> Explanation:
    """A function on all ranks against the healthy profile."""
    past, frame = _past(item), item.frame
    table = exclusive_table(frame, np.arange(frame.size))
    found = []
    for key in {function_key(f) for f in frame.functions if f.category != WAITING_CATEGORY}:
        if key.partition(": ")[2] != item.label:
            continue
        which = [i for i, f in enumerate(frame.functions) if function_key(f) == key]
        now = np.asarray(table[:, which].sum(axis=1))
        then = np.array([past.functions.get(frame.classes[c], {}).get(key, 0.0) for c in frame.cls.tolist()])
        found.append((abs(ms(float(np.median(now))) - item.evidence.value), key, now, then))
    if not found:
        raise Unexplained("the recording holds no such function", where=item.evidence.subject[:100])
    _, _, now, then = min(found, key=lambda f: f[:2])
    value, was = float(np.median(now)), float(np.median(then))
    columns = {"time per step, ms": now / 1e3, "in the healthy profile, ms": then / 1e3}
    return Explanation(
        f"value: median of all ranks; expected: the same in the healthy profile {past.request}; score: their ratio",
        ("", *columns),
        item.by_rank(columns, peers=np.arange(frame.size), subject=np.empty(0, np.int64)),
        ms(value),
        ms(was),
        round(value / was, 3) if was > 0 else ms(value),
    )


@register("eroica/past", "duration of the step")
def step_against_past(item: Item) -> Explanation:
    """The step against that of the healthy profile."""
    past, own = _past(item), item.measures.own
    columns = {"duration of the median step, ms": np.median(own.step_us, axis=1) / 1e3}
    typical = float(np.median(own.step_us))
    return Explanation(
        f"value: median duration of all steps; expected: mean step of the healthy profile {past.request}; score: their ratio",
        ("", *columns),
        item.by_rank(columns, peers=np.arange(item.frame.size)),
        ms(typical),
        ms(past.step_us),
        round(typical / max(past.step_us, 1e-9), 3),
    )

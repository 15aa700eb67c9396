"""Time that is lost on other ranks in other steps: pauses of the software, or unequal data."""

from __future__ import annotations

import numpy as np

from eroica.localizer.causes.measures import Measures, ms
from eroica.localizer.frame import Floats, Frame, Ints
from eroica.localizer.judgement import Finding, name_rows
from eroica.localizer.numbering import heads_of, sums
from eroica.localizer.own import phase_table
from eroica.localizer.reference import MIN_PEERS
from eroica.schemas.verdicts import CauseClass, Evidence

RULE = "eroica/spread"
HOLDS_UP = 0.5
"""A worker holds a step up if it is at least this share as late as the latest."""
UNEQUAL = 0.4
"""Growth since the healthy profile is unequal if mending the late would give back this share of it."""
PROVEN = 2 / 3
"""Against a healthy past, a cause that accuses nobody is told from this share of the least effect on."""
RESTLESS, RESTLESS_RATIO, RESTLESS_ALONE = 0.01, 1.5, 0.02
"""Unequal work spreads own times from step to step by this share, and so many times as much as in the healthy profile; without
one by the last."""
GROWN_BY = 0.75
"""Without a past too, where what is lost to it makes up this share of what iterations have grown by."""
NOISY_RATIO = 2.2
"""Where they spread by ``RESTLESS`` in the healthy profile already, chance makes more of it: so many times as much."""
MEAN_TO_SIGMA = 1.2533
"""Mean absolute deviation to standard deviation of a normal distribution."""
UNSEEN_PAST = 0.2
"""Without a past, restless machines may do what unequal data does."""
CROWDED = 0.9
"""Training threads that wait for a CPU look like unequal work: that alone accuses nothing."""
UNPROVEN, UNPROVEN_EACH = 0.10, 0.04
"""Without a past that shows what chance does here, less of the step is not worth a word, nor what is not lost in each of them."""
UNPROVEN_WORK = 0.125
"""Without a past, less of the step is no unequal work: noisy machines with nearly equal lengths were seen to lose 12 %."""
PAUSE_SHARE = 0.4
"""A pause explains a worker's lateness if its longest is at least this share of it."""
EXPLAINED = 0.5
"""One kind of pause is the cause if it explains this share of the time lost."""
CAUSES = frozenset({"gc", "alloc", "compile", "checkpoint", "loader"})
"""Kinds of pauses that cost time of themselves; a host that synchronises with its device waits for what the device does."""
WARM_UP = frozenset({"alloc", "compile"})
"""What belongs to the first step of a job is no finding where it stays there."""
ALWAYS = 0.75
"""Who is late in this share of the steps is so always."""
COMPUTE = ("forward", "backward")
LOADER_SHARE = 0.50
"""Loading that all ranks share is how a job is made, until it is this share of the step. (That it grew, the past tells.)"""


def find_spread(measures: Measures, slow: Ints) -> list[Finding]:
    """What is lost in single steps to ranks other than *slow*."""
    own, frame, model = measures.own, measures.frame, measures.model
    if own.steps.size == 0 or frame.size < MIN_PEERS:
        return []
    mended = own.mended(slow)
    apart = np.where(own.comparable[:, None], np.maximum(mended.sum(axis=0) - own.usual_us, 0.0), 0.0)
    # Only the latest of a step hold it up; the others' lateness is hidden behind theirs.
    weight = np.where(apart >= HOLDS_UP * apart.max(axis=0, initial=0.0), apart, 0.0)
    by_step = model.step_us(mended) - model.step_us(np.minimum(mended, own.usual_parts_us))
    loss = float(by_step.mean())
    if measures.past is not None:
        # Unequal ranks lift the median too: against the past all of the growth counts, if most of it is unequal.
        grown = float(model.step_us(mended).mean()) - measures.past.busy_us
        more = loss - measures.past.lost_us
        loss = max(grown, more) if more >= UNEQUAL * grown else more
    # Iterations that have grown, and mostly by this, are proof of their own.
    grew = measures.past is None and slow.size == 0 and 0 < UNEQUAL * measures.grown_us <= loss
    loss = max(loss, measures.grown_us) if grew else loss
    least = measures.settings.min_effect * measures.step_us
    if not _changing(weight):
        return []
    what, share, who = _pause(measures, weight)
    # A pause stands in the way as a whole, wherever in the step it comes.
    longest = float(apart.max(axis=0, initial=0.0).mean())
    if share >= EXPLAINED and longest >= (least if what != "loader" else max(least, UNPROVEN * measures.step_us)):
        return [_finding(measures, "software_pause", who, max(loss, longest), what, share)]
    proven = grew or (measures.past is not None and slow.size == 0)
    if loss < (PROVEN * least if proven else max(least, UNPROVEN * measures.step_us)):
        return []
    if not proven and by_step.min() < UNPROVEN_EACH * measures.step_us:
        return []
    shared, each = common_pause(measures)
    if shared != "loader" and each >= EXPLAINED * loss:
        return []  # all of them pause, and not quite alike
    phases = _phases(measures, weight)
    total = max(sum(phases.values()), 1e-9)
    unproven = measures.past is None and not grew and loss < UNPROVEN_WORK * measures.step_us
    if sum(phases.get(p, 0.0) for p in COMPUTE) >= EXPLAINED * total and not unproven and restless(measures, loss):
        return [_finding(measures, "data_imbalance", np.flatnonzero(weight.sum(axis=1)), loss, "unequal compute", 1.0)]
    if phases.get("data", 0.0) >= EXPLAINED * total:
        rows = np.flatnonzero(weight.sum(axis=1) > 0)
        return [_finding(measures, "software_pause", rows, loss, "loader", phases["data"] / total)]
    return []


def find_common_pauses(measures: Measures) -> list[Finding]:
    """Pauses that all ranks take alike: nobody is late, and everybody is slow."""
    what, each = common_pause(measures)
    least = LOADER_SHARE if what == "loader" else measures.settings.min_effect
    return [pause_finding(measures, what, each)] if what and measures.share(each) >= least else []


def common_pause(measures: Measures) -> tuple[str, float]:
    """The kind of pause that takes most of a step on the median rank, and how long, µs; loading only if nothing else is there."""
    each = common_pauses(measures)
    best = max(sorted(each), key=lambda what: (what != "loader" and each[what] > 0, each[what]), default="")
    return best, each.get(best, 0.0)


def common_pauses(measures: Measures) -> dict[str, float]:
    """Kinds of pauses that cost time of themselves, and what the median rank spends in each, µs of a mean step."""
    own = measures.own.own_us
    each = {what: float(np.median(us)) for what, us in pauses_by_kind(measures.frame).items()}
    # What makes the first step longer than the others are, if it is a warm-up, is taken off.
    single = max(float(np.median(_first_step_late(measures))), 0.0) if own.size else 0.0
    return {what: max(us - single, 0.0) if what in WARM_UP else us for what, us in each.items()}


def pauses_by_kind(frame: Frame) -> dict[str, Floats]:
    """What each rank spends in pauses that cost time of themselves, µs of a mean step, shape (n,), by kind."""
    pauses = frame.pauses
    return {
        what: sums(pauses.row[at], pauses.total_us[at], frame.size) / frame.steps_of
        for what, at in pauses.by_kind().items()
        if what in CAUSES
    }


def _first_step_late(measures: Measures) -> Floats:
    """What the first step of each worker's own window takes longer than its others, as a share of each step, µs; shape (n,).

    By own time where the steps that all share are the whole window; else by the steps' lengths, which all that wait feel.
    """
    frame, own = measures.frame, measures.own.own_us
    late = own[:, 0] - np.median(own[:, 1:], axis=1) if own.shape[1] > 1 else np.zeros(frame.size)
    longer = frame.steps_of > max(own.shape[1], 1)
    if longer.any():
        order = np.lexsort((frame.step, frame.step_row))
        row, length = frame.step_row[order], frame.step_us[order]
        first = np.zeros(frame.size)
        heads = heads_of(row)
        first[row[heads]] = length[heads]
        others = (sums(row, length, frame.size) - first) / np.maximum(frame.steps_of - 1, 1)
        late = np.where(longer, first - others, late)
    return np.asarray(late / frame.steps_of)


def imbalance_finding(measures: Measures, loss: float) -> Finding:
    """Unequal work that costs *loss* µs of a step."""
    return _finding(measures, "data_imbalance", np.arange(measures.frame.size), loss, "unequal compute", 1.0)


def pause_gain_us(measures: Measures, what: str, each: float) -> float:
    """What a step would be shorter by without pauses of kind *what* that take each worker *each* µs of it."""
    parts = measures.own.parts_us
    without = parts.copy()
    at = 0 if what == "loader" else 1
    without[at] = np.maximum(without[at] - each, 0.0)
    return max(each, measures.model.gain_us(parts, without))


def pause_finding(measures: Measures, what: str, each: float) -> Finding:
    """Pauses of kind *what* on all ranks that take *each* µs of a step."""
    pauses = measures.frame.pauses
    rows = np.unique(pauses.row[pauses.by_kind()[what]])
    return _finding(measures, "software_pause", rows, each, what, measures.share(each))


def restless_share(measures: Measures) -> float:
    """By which share of their own time workers differ from their peers in changing ways from step to step."""
    own = measures.own
    level = np.maximum(own.typical_usual_us, 1e-9)
    among = own.comparable if own.comparable.any() else np.bincount(measures.frame.cls)[measures.frame.cls] > 1
    if not among.any() or own.steps.size == 0:
        return 0.0
    # Of three replicas one is always the median of the step and none of the spread.
    apart = own.own_us - own.usual_us
    each = np.abs(apart - np.median(apart, axis=1, keepdims=True)).mean(axis=1) / level
    return max(float(np.median((own.spread_us / level)[among])), 0.5 * MEAN_TO_SIGMA * float(each[among].mean()))


def restless(measures: Measures, loss: float = 0.0) -> bool:
    """Whether workers differ from step to step by more than chance does: by more than in the healthy profile, if there is one.

    :param loss: what unequal work would cost of a step, µs; less is asked for where it makes up for most that the job grew by.
    """
    frame, past = measures.frame, measures.past
    spread = restless_share(measures)
    if past is None:
        return spread >= (RESTLESS if 0 < GROWN_BY * measures.grown_us <= loss else RESTLESS_ALONE)
    then = [past.spread_us.get(c, 0.0) / max(past.own_us.get(c, 0.0), 1e-9) for c in frame.classes if c in past.own_us]
    usual = float(np.median(then)) if then else 0.0
    return spread >= max(RESTLESS, (NOISY_RATIO if usual >= RESTLESS else RESTLESS_RATIO) * usual if then else RESTLESS_ALONE)


def _pause(measures: Measures, weight: Floats) -> tuple[str, float, Ints]:
    """The kind of pause that explains most of the lateness, the share that it explains, and on which rows."""
    lost = weight.max(axis=1, initial=0.0)
    explained: dict[str, Ints] = {}
    pauses = measures.frame.pauses
    for what, at in pauses.by_kind().items():
        if what not in CAUSES:
            continue
        longest = np.zeros(lost.size)
        np.maximum.at(longest, pauses.row[at], pauses.max_us[at])
        # What the others take as long is no reason to be late; only collections come to each rank in its own time.
        beyond = longest if what == "gc" else longest - np.median(longest)
        rows = np.flatnonzero((lost > 0) & (beyond >= PAUSE_SHARE * lost))
        if what in WARM_UP and weight[rows, 1:].sum() < weight[rows, 0].sum():
            continue  # late in the first step, as a warm-up is
        explained[what] = rows
    by_row = weight.sum(axis=1)
    whole = max(float(by_row.sum()), 1e-9)
    best = max(sorted(explained), key=lambda w: float(by_row[explained[w]].sum()), default="")
    rows = explained.get(best, np.empty(0, np.int64))
    return best, float(by_row[rows].sum()) / whole, rows


def _phases(measures: Measures, weight: Floats) -> dict[str, float]:
    """In which phases the late workers lose their time, µs above the median of their role and step."""
    frame, steps = measures.frame, measures.own.steps
    out: dict[str, float] = {}
    late_rows, late_steps = np.nonzero(weight)
    for phase in sorted(frame.phases_us):
        if phase == "comm_wait":
            continue
        table = phase_table(frame, steps, (phase,))
        usual = np.zeros_like(table)
        for role in frame.roles:
            rows = np.flatnonzero(frame.cls == role)
            usual[rows] = np.median(table[rows], axis=0)
        out[phase] = float(np.maximum(table - usual, 0.0)[late_rows, late_steps].sum())
    return out


def _changing(weight: Floats) -> bool:
    """Whether others are late in other steps; who is late in all of them is slow, and no matter of chance. Shape (n, s)."""
    late = weight > 0
    if weight.shape[1] < 2 or not late.any():
        return False
    always = late.mean(axis=1) >= ALWAYS
    return float(weight[always].sum()) < 0.5 * float(weight.sum())


def _finding(measures: Measures, cls: CauseClass, rows: Ints, loss: float, what: str, share: float) -> Finding:
    frame = measures.frame
    doubt, instead = _doubt(measures, cls, what)
    evidence = [
        Evidence(
            kind="pause" if cls == "software_pause" else "step",
            metric=f"time of a step lost to {what}",
            subject=name_rows(frame, rows),
            value=ms(loss),
            unit="ms",
            expected=0.0,
            score=round(share, 3),
            score_kind="share",
            rule=RULE,
            compared_with="the ranks of the same role in the same step",
        )
    ]
    return Finding(
        cls=cls,
        ranks=frame.ranks[rows] if cls == "software_pause" else frame.ranks[:0],
        explains=0.0,
        confidence=0.0,
        functions=[what] if cls == "software_pause" else [],
        evidence=evidence,
        gain_us=loss,
        doubt=doubt,
        instead=instead,
    )


def _doubt(measures: Measures, cls: CauseClass, what: str) -> tuple[float, str]:
    """What is taken off the confidence, and the other explanation if it may well be the true one."""
    if cls != "data_imbalance" and what != "loader":
        return 0.0, ""
    if measures.crowded:
        return CROWDED, "training threads that are short of CPUs look the same"
    return (UNSEEN_PAST if measures.past is None else 0.0), ""

"""The default rules: who is slow of itself, which transfers are slow, what single steps lose; who only waits is no cause.

Every kind of cause measures what mending it would give back. Shares are of all that is lost: to ranks slower than usual in their
role, to slow transfers, to heavy stages, against the healthy past. See docs/localisation.md.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from eroica.localizer.causes.experts import join_exchanges
from eroica.localizer.causes.history import growth_notes, with_growth
from eroica.localizer.causes.impact import last_stage, recovered_by, slowest_rows
from eroica.localizer.causes.links import find_links
from eroica.localizer.causes.measures import Measures, ms
from eroica.localizer.causes.slow import FUNCTION_SHARE, agreement, find_slow, slow_rows
from eroica.localizer.causes.spread import UNPROVEN, WARM_UP, find_common_pauses, find_spread
from eroica.localizer.causes.stages import find_stages
from eroica.localizer.causes.untold import DOUBT, WHY, untold_stages
from eroica.localizer.causes.whole import find_unknown, find_whole
from eroica.localizer.clocks import read_clocks
from eroica.localizer.frame import Frame, Ints
from eroica.localizer.judgement import Finding, Judgement
from eroica.localizer.own import Past
from eroica.localizer.profile import grown_functions
from eroica.localizer.reference import MIN_PEERS
from eroica.localizer.robust import row_medians
from eroica.localizer.rules.functions import judge_functions
from eroica.localizer.waiting import Waiting, measure, partial
from eroica.localizer.walk import Blame, walk
from eroica.schemas.settings import LocalizeSettings
from eroica.schemas.verdicts import NOT_ENOUGH
from eroica.schemas.wording import say_count, say_share

LAUNCH_BOUND = 0.8
"""Where so many kernels find the device waiting, a host that waits for others has work of its own to do meanwhile."""
LESSER_SHARE = 0.15
"""A cause that gives back less than this share of what the first does is left out."""
FEW_STEPS = {1: 0.55, 2: 0.85}
"""By how much fewer than three steps lower the confidence."""
UNEQUAL_STEPS = 1.3
"""Ranks of one job that keep step do not differ by more in the length of their steps …"""
UNEQUAL_RUNS = 2.0
"""… and beyond this they are of several runs, though nobody stands out: short steps on busy CPUs differ by less."""
ALL_ALIKE = frozenset({"whole_job", "software_pause", "unknown"})
"""Classes of causes that may be on all ranks alike."""
NOBODYS = frozenset({"whole_job", "unknown"})
"""Classes without a place: nobody is known to wait because of them."""
IN_THE_USUAL = ALL_ALIKE | {"pipeline_stage", "data_imbalance"}
"""Classes of causes that lengthen the usual work itself."""
HARMLESS = frozenset({"alloc", "compile", "loader"})
"""Pauses that most jobs have some of …"""
UNSEEN_WAIT = 0.3
"""… and that are no cause where ranks are missing and the others wait for this share of the step: maybe for the missing ones."""
SEVERAL_RUNS = "the ranks' steps differ in length: they may not be of one run"
NOTED_WAIT = 0.1
"""… from here on it is said, and nobody is cleared."""
CLOCKS_AGREE = 0.75
"""Share of the waiting that both ways of measuring find; with less, one of them is wrong, and people are told."""
SEEN_SHARE, MAX_SEEN = 0.10, 4
"""Who causes less of the waiting is not worth a note; so many notes."""


def judge_eroica(frame: Frame, settings: LocalizeSettings, past: Past | None = None) -> Judgement:
    """See docs/localisation.md. Abstains rather than accuses."""
    steps, durations = frame.step_table()
    if frame.size == 0 or steps.size == 0:
        return Judgement(comparable=False, notes=["no steps were profiled by all workers"])
    if durations.max() <= 0:
        return Judgement(comparable=False, notes=["no step has a length"])
    if frame.collectives.size == 0:
        return judge_functions(frame, float(durations.mean()), _small_roles(frame), settings)
    measures = Measures(frame, settings, past)
    notes = _partial(partial(frame).size)
    incomplete = len(notes)
    notes += [] if _past_tells(frame, past) else _small_roles(frame)
    slow = slow_rows(measures)
    stages, stage_notes = find_stages(measures)
    own_time = [*find_slow(measures, slow), *find_spread(measures, slow), *stages]
    # Where a member is not seen, what looks like a slow transfer may be that member waiting for whom we know.
    links = [f for f in find_links(measures) if not (own_time and f.doubt)]
    found, exchange_notes = join_exchanges(measures, own_time, links)
    # What all ranks do alike makes nobody wait: it counts where nothing else does.
    common = find_common_pauses(measures)
    waiting_us = float(np.median(measures.own.wait_us))
    if common and frame.missing.size and past is None:
        # Most jobs have some of these: without a past, and without all ranks, they are noted and no cause.
        common = [f for f in common if f.functions[0] not in HARMLESS]
    usual = common and past is None and common[0].functions[0] in WARM_UP and measures.share(common[0].gain_us) < UNPROVEN
    aside: list[Finding] = []
    if found or usual or (common and measures.lost_own_us > common[0].gain_us):
        # More is lost to ranks that differ than to what all do alike: that is not the cause, and must not hide who is slow. Nor
        # is what most jobs have some of, where no past tells how much.
        common, aside = [], common
    if not found and frame.missing.size and measures.share(waiting_us) >= NOTED_WAIT:
        if measures.share(waiting_us) >= UNSEEN_WAIT:
            common = [f for f in common if f.functions[0] not in HARMLESS]
        idle = say_share(measures.share(waiting_us))
        notes.append(f"{NOT_ENOUGH}: the ranks seen wait {idle} of the step, maybe for those that are missing")
    if found:
        # What all ranks lose alike since the healthy profile may be more than what one of them loses.
        found += [f for f in find_whole(measures) if f.cls == "whole_job" and f.gain_us >= sum(g.gain_us for g in found)]
    else:
        found = common or find_whole(measures) or find_unknown(measures)
    found = _as_doubtful(frame, with_growth(measures, found))
    aside = [f for f in aside if f.functions not in [g.functions for g in found]]
    findings = _ranked(measures, found, slow)
    notes += [f"all ranks alike also spend {ms(f.gain_us)} ms of a mean step in {f.functions[0]}" for f in aside]
    notes += [*stage_notes, *exchange_notes]
    # A single step may have been cut differently on each rank.
    one_run = _one_clockwork(measures, UNEQUAL_STEPS if findings else UNEQUAL_RUNS) == 1 or (steps.size == 1 and not findings)
    notes += growth_notes(measures, findings)
    if not one_run:
        notes.append(SEVERAL_RUNS)
    own = measures.own
    accused = np.flatnonzero(np.isin(frame.ranks, np.concatenate([f.ranks for f in findings]) if findings else []))
    waited = own.wait_us.mean(axis=1) / max(measures.step_us, 1e-9)
    waits = (waited >= settings.min_wait_share) & ~np.isin(np.arange(frame.size), accused)
    waits &= ~np.isin(measures.model.stage, [stage for f in findings for stage in f.stages])
    # Who waits only waits for somebody: of what all ranks do alike, or nobody knows, that is not said.
    waiters = np.flatnonzero(waits) if any(f.cls not in NOBODYS for f in findings) else np.empty(0, np.int64)
    lost = measures.share(measures.lost_own_us) >= settings.min_effect or not own.comparable.all()
    if lost and not any(f.confidence >= settings.accuse_confidence and f.cls not in ALL_ALIKE for f in findings):
        # Time is lost and nobody is accused: then, and only then, people ask whom all waited for. The walk is most of the work.
        waiting = measure(frame)
        blame = walk(frame, waiting)
        notes = [*notes[:incomplete], *_before(blame), *_by_clocks(frame, waiting), *notes[incomplete:]]
        notes += [] if any(f.cls not in ALL_ALIKE for f in findings) else _seen(measures, blame)
    sure = [f for f in findings if f.confidence >= settings.accuse_confidence]
    gains = [f.gain_us for f in sure]
    # No step is shorter than the work that is usual in it, but for what all ranks do alike and should not.
    least = float(measures.model.step_us(own.usual_parts_us).mean()) - sum(
        f.gain_us for f in sure if f.cls in IN_THE_USUAL or f.stages
    )
    ideal = min(max(measures.step_us - sum(gains), least), measures.step_us)
    if gains and frame.launch_bound >= LAUNCH_BOUND:
        notes.append("the hosts set the pace and work on while kernels wait: what mending gives back is an upper bound")
    return Judgement(
        findings=findings,
        waiters=waiters,
        wait_share=float(waited[waiters].mean()) if waiters.size else 0.0,
        step_us=measures.step_us,
        ideal_step_us=ideal if gains else None,
        why=_why(frame, bool(own.comparable.any()) or _past_tells(frame, past), one_run),
        comparable=bool(findings) or (one_run and (bool(own.comparable.any()) or _past_tells(frame, past))),
        recovered_by_slowest=recovered_by(measures, slowest_rows(measures)),
        recovered_by_last_stage=recovered_by(measures, last_stage(measures)) if measures.model.stages > 1 else None,
        notes=notes,
    )


def _why(frame: Frame, comparable: bool, one_run: bool) -> str:
    """Why nobody can be compared, if it is so."""
    if not comparable:
        return (_small_roles(frame) or ["no worker has peers that do the same"])[0]
    return "" if one_run else SEVERAL_RUNS


def _ranked(measures: Measures, found: list[Finding], slow: Ints) -> list[Finding]:
    """Causes by what they give back, with their shares and confidence; the small ones beside a large one are left out."""
    if not found:
        return []
    found = sorted(found, key=lambda f: (-f.gain_us, f.cls, f.ranks.tolist()[:1]))
    kept = [f for f in found if f.gain_us >= LESSER_SHARE * found[0].gain_us]
    own_time = [f for f in found if f.cls in ("worker", "host", "data_imbalance", "software_pause")]
    rest = max(measures.lost_own_us - sum(f.gain_us for f in own_time), 0.0)
    total = max(sum(f.gain_us for f in found) + rest, 1e-9)
    return [replace(f, explains=f.gain_us / total, confidence=_confidence(measures, f, f.gain_us / total, slow)) for f in kept]


def _confidence(measures: Measures, finding: Finding, explains: float, slow: Ints) -> float:
    """From the share explained, the steps that agree, how far out the culprit is, the source of the roles, and coverage."""
    frame, settings = measures.frame, measures.settings
    if finding.cls == "unknown":
        return settings.accuse_confidence  # it accuses nobody: just enough to be said
    rows = np.flatnonzero(np.isin(frame.ranks, finding.ranks))
    share = measures.share(finding.gain_us)
    size = min(1.0, share / (2.0 * settings.min_effect))
    if finding.seen:
        agree = distance = finding.seen
    elif finding.cls in ("worker", "host"):
        agree = agreement(measures, np.union1d(rows, slow))
        z = float(measures.own.z[rows].max()) if rows.size else 0.0
        distance = min(1.0, z / (2.0 * settings.outlier_z))
    else:
        agree, distance = 1.0, size
    role = 1.0 if frame.request.topology_source not in {"none", "unknown"} else 0.8
    steps = FEW_STEPS.get(measures.own.steps.size, 1.0)
    raw = 0.35 * min(1.0, explains / 0.8) + 0.25 * agree + 0.2 * distance + 0.1 * role + 0.1 * size
    return round(float(min(1.0, raw) * (1.0 - finding.doubt) * frame.coverage * steps * _one_clockwork(measures)), 3)


def _as_doubtful(frame: Frame, found: list[Finding]) -> list[Finding]:
    """Workers and hosts with a doubt where they may be stages that nobody told of."""
    placed = [f for f in found if f.cls in ("worker", "host") and not f.stages]
    if not placed or not untold_stages(frame):
        return found
    return [replace(f, doubt=max(f.doubt, DOUBT), instead=f.instead or WHY) if f in placed else f for f in found]


def _one_clockwork(measures: Measures, ratio: float = UNEQUAL_STEPS) -> float:
    """1 if all ranks' steps are equally long, up to *ratio*, as those of one job are; less where they are not."""
    each = row_medians(measures.own.step_us)
    return 1.0 if float(each.max()) <= ratio * float(each.min()) else 0.6


def _partial(partial: int) -> list[str]:
    lack = "lacks" if partial == 1 else "lack"
    return (
        [f"{say_count(partial, 'collective')} {lack} members in the profile: who was last there may be unseen"] if partial else []
    )


def _before(blame: Blame) -> list[str]:
    total = blame.total_us
    if total > 0 and blame.before_window_us > 0.2 * total:
        return [f"{say_share(blame.before_window_us / total)} of the waiting goes back to before the window opened"]
    return []


def _past_tells(frame: Frame, past: Past | None) -> bool:
    """Whether every worker can be compared with itself, so that those without peers can be judged too."""
    return past is not None and bool(np.isin(frame.ranks, list(past.own_by_rank)).all())


def _by_clocks(frame: Frame, waiting: Waiting) -> list[str]:
    clocks = read_clocks(frame, waiting)
    if clocks is None or clocks.agreement >= CLOCKS_AGREE:
        return []
    return [
        f"what ranks wait by their clocks and without them agrees for {clocks.agreement:.0%} only: "
        "members of a collective may not end together"
    ]


def _small_roles(frame: Frame) -> list[str]:
    if any(int((frame.cls == c).sum()) < MIN_PEERS for c in frame.roles):
        return ["classes of fewer than three workers cannot be compared"]
    return []


def _seen(measures: Measures, blame: Blame) -> list[str]:
    """What was seen of those who cause most waiting, where it is not enough to accuse anybody.

    Nothing, where all own time beyond the usual is less of the step than an effect that counts: some rank always comes last.
    """
    frame, own = measures.frame, measures.own
    if measures.share(measures.lost_own_us) < measures.settings.min_effect:
        return []
    share = blame.kept.sum(axis=1) / max(blame.total_us, 1e-9)
    notes = []
    for row in np.lexsort((np.arange(frame.size), -share)).tolist()[:MAX_SEEN]:
        now, usual = float(np.median(own.own_us[row])), float(np.median(own.usual_us[row]))
        if share[row] < SEEN_SHARE or own.excess_us[row] <= 0 or now <= usual:
            continue
        peers = measures.peers(row, np.array([row]))
        grown = grown_functions(frame, row, peers, FUNCTION_SHARE * float(own.excess_us[row]), most=1)
        where = f", most in {grown[0].label}" if grown else ""
        notes.append(
            f"{NOT_ENOUGH}: rank {int(frame.ranks[row])} causes {say_share(float(share[row]))} of the waiting, own time "
            f"{ms(now)} ms against {ms(usual)} ms{where}"
        )
    return notes

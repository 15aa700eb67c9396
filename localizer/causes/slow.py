"""Workers and hosts that have more own time than their role, step after step."""

from __future__ import annotations

import numpy as np

from eroica.localizer.causes.measures import Measures, ms
from eroica.localizer.causes.places import places
from eroica.localizer.frame import Floats, Ints
from eroica.localizer.judgement import Finding, name_rows
from eroica.localizer.numbering import heads_of, stable_order
from eroica.localizer.own import chance_limit, few_samples, floor_share, lasting_level
from eroica.localizer.profile import function_evidence, grown_functions
from eroica.localizer.reference import MIN_PEERS, PAIR, Bools
from eroica.localizer.robust import MAD_TO_SIGMA, row_medians, spread_of
from eroica.schemas.verdicts import Evidence

RULE = "eroica/own-time"
EQUAL_EXCESS = 0.25
"""A further culprit is at least this share as slow as the slowest, or gives back enough by itself."""
GROSS, GROSS_GAP = 1.0, 3.0
"""Slower than usual by this share of it, by half of that in each step, and so many times as far out as any other peer."""
PART_FAR = 5.0
"""In one part of its own time, who stands out is so many spreads from the median, and does not count for the others' spread."""
GUESSED_LIMIT = 2.0
"""Of those whom the job's growth tells one thing is asked, not as much of every worker: so many deviations are enough."""
GUESSED = 0.25
"""Taken off the confidence where only the job's growth tells which half of a role is the slow one."""
FUNCTION_SHARE = 0.10
"""A function is named if it makes up at least this share of the excess."""
LOADING = 0.5
"""A host waits for data if that makes up so much of its excess."""
RELEASED = 0.25
"""Who is slow and holds the others up waits less than they do, by at least this share of the excess."""


def slow_rows(measures: Measures) -> Ints:
    """Rows whose own time stands out in most steps, whose peers wait for them, and whose mending would give time back."""
    own, settings = measures.own, measures.settings
    least = settings.min_effect * measures.step_us
    z = np.maximum(np.maximum(own.z, _host_z(measures)), _part_z(measures, least))
    limit = np.where(own.guessed, GUESSED_LIMIT, own.limit)
    out = np.flatnonzero(own.comparable & ((z >= limit) | _gross(measures)) & (own.excess_us >= least))
    out = out[_released(measures, out)]
    if out.size == 0:
        return out
    lead = float(own.excess_us[out].max())
    main = out[own.excess_us[out] >= EQUAL_EXCESS * lead]
    further = np.setdiff1d(out, main)
    if further.size and measures.model.gain_us(own.mended(main), own.mended(out)) >= least:
        main = out
    gain = measures.model.gain_us(own.parts_us, own.mended(main))
    return main if gain >= 0.5 * least else main[:0]


def find_slow(measures: Measures, rows: Ints) -> list[Finding]:
    """*rows* as causes: hosts, workers. What they give back together is shared out by the excess of the slowest of each."""
    if rows.size == 0:
        return []
    own = measures.own
    gain = measures.model.gain_us(own.parts_us, own.mended(rows))
    # Who has one good step of three shares what slows his host all the same: the median step tells.
    where = _apart(measures, places(rows, measures.rows_of_hosts, row_medians(own.own_us - own.usual_us)))
    slowest = [float(own.excess_us[mine].max()) for mine, _ in where]
    return [
        _finding(measures, mine, rows, hosts, gain * excess / sum(slowest))
        for (mine, hosts), excess in zip(where, slowest, strict=True)
    ]


def _apart(measures: Measures, where: list[tuple[Ints, list[str]]]) -> list[tuple[Ints, list[str]]]:
    """Hosts that wait for data, and hosts that are slow in what they do, as causes of their own: no one thing does both."""
    if not any(len(hosts) > 1 for _, hosts in where):
        return where
    out: list[tuple[Ints, list[str]]] = []
    for rows, hosts in where:
        of_host = np.array([measures.frame.hosts[row] for row in rows.tolist()])
        loading = {host for host in hosts if _waits_for_data(measures, rows[of_host == host], rows)}
        parts = [part for part in (sorted(loading), [host for host in hosts if host not in loading]) if part]
        out += [(rows[np.isin(of_host, part)], part) for part in parts] if len(parts) > 1 else [(rows, hosts)]
    return out


def _waits_for_data(measures: Measures, rows: Ints, culprits: Ints) -> bool:
    """Whether *rows*, of one host, spend most of their excess in loading, against peers that are none of the *culprits*."""
    data, peers = measures.data_us, measures.peers(int(rows[0]), culprits)
    usual = float(np.median(data[peers])) if peers.size else 0.0
    return float(np.median(data[rows])) - usual >= LOADING * float(np.median(measures.own.excess_us[rows]))


def _gross(measures: Measures) -> Bools:
    """Who is so much slower than all its peers, in every step, that no spread of so few of them is needed to see it."""
    own, frame = measures.own, measures.frame
    out = np.zeros(frame.size, dtype=np.bool_)
    if own.steps.size < 2:
        return out
    apart = (own.own_us - own.usual_us).min(axis=1)
    usual = own.typical_usual_us
    far = (own.excess_us >= GROSS * usual) & (apart >= 0.5 * GROSS * usual)
    for role in np.unique(frame.cls[far]).tolist():
        rows = np.flatnonzero(frame.cls == role)
        rest = rows[~far[rows]]
        if rest.size > rows.size / 2:
            nearest = max(float(own.excess_us[rest].max()), 0.0)
            out[rows] = far[rows] & (own.excess_us[rows] >= GROSS_GAP * nearest)
    return out


def _host_z(measures: Measures) -> Floats:
    """For each row, how far its host's workers stand out together: what all of them share is seen through more noise."""
    own, frame = measures.own, measures.frame
    host_of, hosts = frame.host_of
    out = np.zeros(frame.size)
    # Of two hosts, the past tells which is as it was.
    least = MIN_PEERS if measures.past is None else PAIR
    if len(hosts) < least or own.steps.size == 0:
        return out
    beyond = own.own_us - own.usual_us
    for role in frame.roles:
        mine = np.flatnonzero(frame.cls == role)
        mine = mine[stable_order(host_of[mine])]
        several = np.bincount(host_of[mine], minlength=len(hosts))[host_of[mine]] > 1
        mine = mine[several]
        heads = heads_of(host_of[mine])
        if heads.size < least:
            continue
        size = np.diff(np.append(heads, mine.size))
        apart = np.add.reduceat(beyond[mine], heads, axis=0) / size[:, None]
        level = lasting_level(apart)
        if heads.size >= MIN_PEERS:
            between = spread_of(level)
        else:
            single = lasting_level(beyond[mine])
            between = spread_of(single - np.repeat(level, size)) / float(np.sqrt(size.min()))
        each = MAD_TO_SIGMA * float(np.median(np.abs(apart - level[:, None])))
        floor = floor_share(heads.size) * float(np.median(own.usual_us[mine[: size[0]]]))
        freedom = (heads.size if heads.size >= MIN_PEERS else mine.size - heads.size + 1) - 1
        chance = few_samples(float(own.limit[0]), freedom) * max(between, 1.25 * each / np.sqrt(own.steps.size))
        out[mine] = np.repeat(level / np.maximum(np.maximum(chance, floor / np.sqrt(size)), 1e-9), size)
    # There are fewer hosts than workers, so chance has fewer tries.
    return out * own.limit / max(measures.settings.outlier_z, chance_limit(len(hosts)))


def _part_z(measures: Measures, least: float) -> Floats:
    """For each row of which *least* µs are in question, how far it stands out in what is done once a step, or in the rest.

    A loader that starves is plain among loaders, and lost in the noise of the compute that comes after it. Two parts are two
    chances to be wrong, which the spread of the noisier whole, in the floor, more than outweighs.
    """
    own, frame = measures.own, measures.frame
    out = np.zeros(frame.size)
    asked = own.comparable & (own.excess_us >= least) & (own.z < own.limit)
    for role in np.unique(frame.cls[asked]).tolist():
        rows = np.flatnonzero(frame.cls == role)
        if rows.size < MIN_PEERS:
            continue
        level = float(np.median(own.usual_us[rows[0]]))
        wider = few_samples(float(own.limit[0]), rows.size - 1)
        floor = floor_share(rows.size) * level
        for part, usual in zip(own.parts_us, own.usual_parts_us, strict=True):
            apart = part[rows] - usual[rows]
            lasting = lasting_level(apart)
            near = lasting <= np.median(lasting) + PART_FAR * spread_of(lasting)
            single = MAD_TO_SIGMA * float(np.median(np.abs(apart[near] - lasting[near][:, None])))
            chance = wider * max(spread_of(lasting[near]), 1.25 * single / np.sqrt(own.steps.size))
            out[rows] = np.maximum(out[rows], np.where(near, 0.0, lasting) / max(chance, floor))
    return np.where(asked, out, 0.0)


def _released(measures: Measures, rows: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Whether each of *rows* waits less than the peers that wait most, as the one does whom they wait for."""
    own, frame = measures.own, measures.frame
    waits = own.typical_wait_us
    longest = np.zeros(len(frame.classes))
    for role in np.unique(frame.cls[rows]).tolist():
        longest[role] = np.quantile(waits[frame.cls == role], 0.75)
    return np.asarray(longest[frame.cls[rows]] - waits[rows] >= RELEASED * own.excess_us[rows])


def agreement(measures: Measures, rows: Ints) -> float:
    """Share of the steps in which the slowest of each role of *rows*, against what is usual, is one of them."""
    own, frame = measures.own, measures.frame
    if rows.size == 0 or own.steps.size == 0:
        return 0.0
    apart = own.own_us - own.usual_us
    shares = []
    for role in np.unique(frame.cls[rows]).tolist():
        peers = np.flatnonzero(frame.cls == role)
        shares.append(np.isin(peers[apart[peers].argmax(axis=0)], rows).mean())
    return float(np.mean(shares))


def _finding(measures: Measures, rows: Ints, culprits: Ints, hosts: list[str], gain: float) -> Finding:
    frame, own = measures.frame, measures.own
    lead = int(rows[np.argmax(own.excess_us[rows])])
    peers = measures.peers(lead, culprits)
    excess = float(own.excess_us[lead])
    grown = grown_functions(frame, lead, peers, FUNCTION_SHARE * excess)
    subject, compared = f"rank {int(frame.ranks[lead])}", name_rows(frame, peers)
    waits = own.typical_wait_us
    evidence = [
        Evidence(
            kind="step", metric="own time per step", subject=subject, value=ms(float(np.median(own.own_us[lead]))), unit="ms",
            expected=ms(float(np.median(own.usual_us[lead]))), score=round(float(own.z[lead]), 2), score_kind="z", rule=RULE,
            compared_with=compared,
        ),
        Evidence(
            kind="wait", metric="exposed communication per step", subject=subject, value=ms(float(waits[lead])), unit="ms",
            expected=ms(float(np.median(waits[peers]))) if peers.size else 0.0, score=round(agreement(measures, rows), 3),
            score_kind="share",
            rule="eroica/steps-agree", compared_with=compared,
        ),
    ]  # fmt: skip
    evidence += function_evidence(frame, lead, peers, grown, RULE)
    return Finding(
        cls="host" if hosts else "worker",
        ranks=frame.ranks[rows],
        explains=0.0,
        confidence=0.0,
        functions=[g.label for g in grown],
        evidence=evidence,
        hosts=hosts or sorted({frame.hosts[row] for row in rows.tolist()} - {""}),
        gain_us=gain,
        doubt=GUESSED if own.guessed[lead] else 0.0,
    )

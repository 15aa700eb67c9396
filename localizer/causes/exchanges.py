"""Receive waits of expert-parallel exchanges: who sends late, who receives slowly, which pair is slow.

A rank that all wait for and that itself waits less than usual came late: own time says whether it is to blame. One that waits as
usual came in time, and what it sends is slow. A rank that waits for all sources receives slowly, unless they wait less for it
than usual: then it came early. Both at once are its link. See docs/localisation.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from eroica.localizer.causes.measures import Measures, ms
from eroica.localizer.frame import Floats, Ints
from eroica.localizer.own import chance_limit, few_samples
from eroica.localizer.receive import Effects, Matrix, effects
from eroica.localizer.robust import median, spread_of
from eroica.schemas.verdicts import NOT_ENOUGH, Evidence

RULE = "eroica/receive-waits"
SIDE_RATIO, PAIR_RATIO = 1.25, 2.0
"""A source or destination, and a pair, stand out if they take so many times as long as usual (DeepXTrace's limits)."""
FLOOR = 0.03
"""Spreads are at least this share: in a matrix of few figures chance may make them tiny."""
MAX_PAIRS = 3
"""More single pairs have no place in common that could be named."""
HELD = 0.5
"""What a rank gains on one side has to be this share of what it loses on the other to be early or late; and own time at this
share of its own limits, and of what the others wait, is enough where the matrix agrees."""
PAIR_WIDER = 1.25
"""Single waits are skewed, as medians of many are not: their limits are so much wider."""
LASTING = 2.0
"""A single pair is slow in every report: the longest is no more than so many times the others' mean."""
MAX_NOTES = 3
SOURCE, DESTINATION, PAIR = "wait for the source per step", "wait of the destination per step", "wait of the pair per step"


@dataclass(frozen=True)
class Exchange:
    """Something that stands out in a matrix."""

    kind: str
    """``late``, ``sends``, ``link``, ``receives``, ``pair`` or ``hosts``."""
    ranks: Ints
    """One rank; two of a pair: source and destination; none of hosts."""
    hosts: tuple[str, ...]
    gain_us: float
    plain: float
    """How far out it is over the limit, 1 at the limit."""
    evidence: list[Evidence]

    @property
    def place(self) -> tuple[bool, tuple[int, ...], tuple[str, ...]]:
        """What is named."""
        return self.kind == "hosts", tuple(self.ranks.tolist()), self.hosts


def find_exchanges(measures: Measures) -> tuple[list[Exchange], list[str]]:
    """What stands out in the matrices of all exchanges, the costliest first, and notes on what no single place explains."""
    frame = measures.frame
    if not frame.receive.row or measures.step_us <= 0:
        return [], []
    found: dict[tuple[bool, tuple[int, ...], tuple[str, ...]], Exchange] = {}
    notes: list[str] = []
    levels: dict[tuple[str, int, int], list[tuple[float, str]]] = {}
    for matrix in frame.receive.matrices(frame.ranks, frame.steps_of):
        known = matrix.wait_us[np.isfinite(matrix.wait_us)]
        if known.size == 0:
            continue
        shape = (matrix.name, *matrix.wait_us.shape)
        levels.setdefault(shape, []).append((float(np.median(known)), matrix.label))
        if float(known.max()) < _least(measures):
            continue
        ones, said = _of_matrix(measures, matrix)
        notes += said
        for one in ones:
            before = found.get(one.place)
            if before is None:
                found[one.place] = one
            else:
                more, less = (one, before) if one.gain_us > before.gain_us else (before, one)
                found[one.place] = replace(more, evidence=[*more.evidence, *less.evidence])
    notes += _levels(measures, levels)
    ordered = sorted(found.values(), key=lambda one: (-one.gain_us, one.place))
    return ordered, notes[:MAX_NOTES]


def _least(measures: Measures) -> float:
    return measures.settings.min_effect * measures.step_us


def _of_matrix(measures: Measures, matrix: Matrix) -> tuple[list[Exchange], list[str]]:
    frame = measures.frame
    hosts = [frame.host_at(rank) for rank in matrix.sources.tolist()]
    theirs = [frame.hosts[row] for row in matrix.rows.tolist()]
    near = np.array([[a == b for b in theirs] for a in hosts], dtype=np.bool_)
    e = effects(matrix.wait_us, near)
    limit = max(measures.settings.outlier_z, chance_limit(sum(matrix.wait_us.shape)))
    found, notes = _sides(measures, matrix, e, limit)
    pairs = _host_pairs(measures, matrix, e, near, hosts, theirs, limit)
    single, scattered = _pairs(measures, matrix, e, [] if pairs else found, hosts, theirs)
    if scattered and not pairs:
        notes.append(f"{NOT_ENOUGH}: single pairs of {matrix.label} wait long and have no place in common")
    return [*found, *pairs, *([] if pairs or scattered else single)], notes


def _sides(measures: Measures, matrix: Matrix, e: Effects, limit: float) -> tuple[list[Exchange], list[str]]:
    """Sources that all wait for, and destinations that wait for all."""
    frame = measures.frame
    sent = _out(e.source, e.source_spread, limit)
    received = _out(e.destination, e.destination_spread, limit)
    usual_for, usual_of = _typical(matrix.wait_us, 1), _typical(matrix.wait_us, 0)
    at = {int(frame.ranks[row]): d for d, row in enumerate(matrix.rows.tolist())}
    from_ = {rank: s for s, rank in enumerate(matrix.sources.tolist())}
    waits = measures.own.typical_wait_us
    found: list[Exchange] = []
    notes: list[str] = []
    for rank in sorted({*from_, *at}):
        s, d = from_.get(rank), at.get(rank)
        more_for = _beyond(usual_for[s], e.source[s]) if s is not None else 0.0
        more_of = _beyond(usual_of[d], e.destination[d]) if d is not None else 0.0
        evidence, gains, plain, kinds = list[Evidence](), [0.0], [0.0], set[str]()
        if s is not None and sent[s] >= 1 and more_for >= _least(measures):
            kinds.add("sends")
            others = float(np.median(waits[matrix.rows[matrix.rows != (matrix.rows[d] if d is not None else -1)]]))
            gains.append(min(more_for, others))
            plain.append(float(sent[s]))
            evidence.append(_evidence(SOURCE, rank, usual_for[s], e.source[s], f"the other sources of {matrix.label}"))
        if d is not None and received[d] >= 1 and more_of >= _least(measures):
            kinds.add("receives")
            gains.append(min(more_of, float(waits[matrix.rows[d]])))
            plain.append(float(received[d]))
            evidence.append(
                _evidence(DESTINATION, rank, usual_of[d], e.destination[d], f"the other destinations of {matrix.label}")
            )
        if not kinds or max(gains) < _least(measures):
            continue
        if d is None or not (frame.ranks == rank).any():
            notes.append(f"{NOT_ENOUGH}: all wait for rank {rank} in {matrix.label}, which tells nothing of its own waits")
            continue
        kind = "link" if len(kinds) == 2 else kinds.pop()
        if kind == "sends" and _less(e.destination[d], more_for, e.usual_us[:, d]):
            kind = "late"
        elif kind == "receives" and s is not None and _less(e.source[s], more_of, e.usual_us[s]):
            continue  # it came early: others are behind it, and each is seen by itself
        found.append(Exchange(kind, np.array([rank]), (frame.hosts[matrix.rows[d]],), max(gains), max(plain), evidence))
    return found, notes


def _host_pairs(
    measures: Measures,
    matrix: Matrix,
    e: Effects,
    near: npt.NDArray[np.bool_],
    hosts: Sequence[str | None],
    theirs: Sequence[str],
    limit: float,
) -> list[Exchange]:
    """Pairs of hosts between which waits are long, in either direction; with two hosts there is nothing to compare with."""
    known = sorted({h for h in hosts if h is not None} & set(theirs))
    if len(known) < 3:
        return []
    place = {host: i for i, host in enumerate(known)}
    s = np.array([place.get(h, -1) if h is not None else -1 for h in hosts])
    d = np.array([place.get(h, -1) for h in theirs])
    worst: dict[tuple[str, str], tuple[float, float, Evidence]] = {}
    waits = measures.own.typical_wait_us
    for a in range(len(known)):
        for b in range(len(known)):
            cells = np.ix_(s == a, d == b)
            log, wait = e.pair[cells], matrix.wait_us[cells]
            fine = np.isfinite(log)
            if a == b or np.count_nonzero(fine) < 4:
                continue
            level, spread = float(np.median(log[fine])), max(e.pair_spread, FLOOR) * 1.25 / np.sqrt(np.count_nonzero(fine))
            more = _beyond(float(np.median(wait[fine])), level)
            out = level / (limit * max(spread, FLOOR))
            added = float(np.median(e.pair_us[cells][fine]))
            gain = min(more, added, float(np.median(waits[matrix.rows[d == b]])))
            if level < np.log(PAIR_RATIO) or out < 1 or gain < _least(measures):
                continue
            subject = f"host {known[a]} → host {known[b]}"
            evidence = _pair_evidence(subject, float(np.median(wait[fine])), level, matrix)
            key = (known[min(a, b)], known[max(a, b)])
            if key not in worst or gain > worst[key][0]:
                worst[key] = gain, float(out), evidence
    return [
        Exchange("hosts", np.empty(0, np.int64), pair, gain, out, [evidence]) for pair, (gain, out, evidence) in worst.items()
    ]


def _pairs(
    measures: Measures,
    matrix: Matrix,
    e: Effects,
    sides: list[Exchange],
    hosts: Sequence[str | None],
    theirs: Sequence[str],
) -> tuple[list[Exchange], bool]:
    """Single pairs, and whether they are too many to be named."""
    ranks = measures.frame.ranks[matrix.rows]
    limit = PAIR_WIDER * chance_limit(int(np.count_nonzero(np.isfinite(e.pair))))
    added = limit * spread_of(e.pair_us[np.isfinite(e.pair_us)])
    limit = limit * max(e.pair_spread, FLOOR)
    even = _even(matrix, ranks, e)
    named = np.concatenate([one.ranks for one in sides]) if sides else np.empty(0, np.int64)
    free = ~np.isin(matrix.sources, named)[:, None] & ~np.isin(ranks, named)[None, :]
    with np.errstate(invalid="ignore"):
        out = free & even & (matrix.worst <= LASTING) & (e.pair >= max(np.log(PAIR_RATIO), limit)) & (e.pair_us >= added)
    waits = measures.own.typical_wait_us
    found = []
    for s, d in np.argwhere(out).tolist():
        wait, log = float(matrix.wait_us[s, d]), float(e.pair[s, d])
        gain = min(_beyond(wait, log), float(e.pair_us[s, d]), float(waits[matrix.rows[d]]))
        if gain < _least(measures):
            continue
        pair = np.array([matrix.sources[s], ranks[d]])
        subject = f"rank {int(pair[0])} → rank {int(pair[1])}"
        both = tuple(sorted({theirs[d], *filter(None, [hosts[s]])}))
        found.append(Exchange("pair", pair, both, gain, log / limit, [_pair_evidence(subject, wait, log, matrix)]))
    return found, len(found) > MAX_PAIRS


def _even(matrix: Matrix, ranks: Ints, e: Effects) -> npt.NDArray[np.bool_]:
    """Whether the source waits for the destination :data:`HELD` of what is usual: else the one came late, the other early.

    Shape (S, D); what the source does not tell counts as usual.
    """
    out: npt.NDArray[np.bool_] = np.ones(matrix.wait_us.shape, dtype=np.bool_)
    _, s, d = np.intersect1d(matrix.sources, ranks, assume_unique=True, return_indices=True)
    back = matrix.wait_us[np.ix_(s, d)].T / e.usual_us[np.ix_(s, d)].T
    out[np.ix_(s, d)] = ~(back < HELD)
    return out


def _out(log: Floats, spread: float, limit: float) -> Floats:
    """How far out, 1 at the limit; below it where the ratio alone is too small."""
    known = int(np.count_nonzero(np.isfinite(log)))
    wide = limit * few_samples(limit, known - 1) * max(spread, FLOOR)
    return np.nan_to_num(log / max(wide, float(np.log(SIDE_RATIO))), nan=0.0)


def _typical(wait_us: Floats, axis: int) -> Floats:
    some = np.isfinite(wait_us).any(axis=axis)
    out = np.zeros(some.shape)
    table = wait_us if axis == 1 else wait_us.T
    out[some] = [float(np.median(line[np.isfinite(line)])) for line in table[some]]
    return out


def _beyond(wait_us: float, log: float) -> float:
    """What of *wait_us* an effect makes, µs; negative where it makes it less."""
    return float(wait_us - wait_us / np.exp(log)) if np.isfinite(log) else 0.0


def _less(log: float, lost_us: float, usual_us: Floats) -> bool:
    """Whether a rank has on one side, by its effect *log*, what it lacks on the other: it cannot wait less than nothing."""
    known = usual_us[np.isfinite(usual_us)]
    usual = median(known) if known.size else 0.0
    return bool(usual * (1.0 - np.exp(log)) >= HELD * min(lost_us, usual))


def _levels(measures: Measures, levels: dict[tuple[str, int, int], list[tuple[float, str]]]) -> list[str]:
    """Exchanges that wait longer as a whole than those like them: why, only their own past would tell."""
    notes = []
    for told in levels.values():
        usual = float(np.median([level for level, _ in told]))
        for level, name in told if len(told) >= 3 and usual > 0 else ():
            if level >= SIDE_RATIO * usual and level - usual >= _least(measures):
                notes.append(f"all pairs of {name} wait {level / usual:.1f} times as long as in the exchanges like it")
    return sorted(notes)


def _evidence(metric: str, rank: int, wait_us: float, log: float, compared: str) -> Evidence:
    return Evidence(
        kind="wait", metric=metric, subject=f"rank {rank}", value=ms(wait_us), unit="ms", expected=ms(wait_us / np.exp(log)),
        score=round(float(np.exp(log)), 3), score_kind="ratio", rule=RULE, compared_with=compared,
    )  # fmt: skip


def _pair_evidence(subject: str, wait_us: float, log: float, matrix: Matrix) -> Evidence:
    return Evidence(
        kind="wait", metric=PAIR, subject=subject, value=ms(wait_us), unit="ms", expected=ms(wait_us / np.exp(log)),
        score=round(float(np.exp(log)), 3),
        score_kind="ratio", rule=RULE, compared_with=f"source and destination alone, in {matrix.label}",
    )  # fmt: skip

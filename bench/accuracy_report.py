"""Tables and a plot of the accuracy bench."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from accuracy_cases import DOSES, Case
from accuracy_score import Score

Rows = Sequence[tuple[Case, list[Score]]]
RIGHT = Path(__file__).with_name("accuracy_right.md")
SURE = 0.9
BINS = ((0.5, 0.6), (0.6, 0.7), (0.7, 0.8), (0.8, 0.9), (0.9, 1.01))
COLOURS = {"eroica": "#1f6f8b", "paper": "#c8553d", "guide": "#8a8a8a"}


def report(rows: Rows, title: str) -> str:
    """Everything as Markdown."""
    rules = list(dict.fromkeys(s.rules for _, scores in rows for s in scores))
    parts = [
        "# Accuracy\n",
        f"Made by `python bench/accuracy.py`: {title}.\n",
        f"Simulated jobs, broken in known ways, through the grouping and the localizer as they are: {_covered(rows)}. "
        "A dose is how much longer the step takes: loud 1.3, quiet 1.15, masked 1.05.\n",
        "![top-1 by dose, and calibration](img/accuracy.svg)\n",
        _table("## Overall", ["rules", *_HEADS, "false accusations, healthy", "right at ≥ 0.9"], _overall(rows, rules)),
        _table(
            "## By dose and kind of case",
            ["cases", "rules", "count", *_HEADS, "class right", "nothing claimed"],
            _by_kind(rows, rules),
        ),
        _table(
            "## Bad delivery: 2 % lost, 2 % twice, 10 % late, clocks 30 s off",
            ["rules", "cases", "top-1, all delivered", "top-1, bad delivery", "fall", "no waiter named"],
            _delivery(rows, rules),
        ),
        _by_fault(rows, rules),
        _by_layout(rows, rules),
        _confusion(rows, rules[0]) if rules else "",
        _calibration(rows, rules),
        _healthy(rows, rules),
        f"## What counts as right\n\n{RIGHT.read_text(encoding='utf-8')}",
    ]
    return "\n".join(p for p in parts if p) + "\n"


_HEADS = ("precision", "recall", "top-1", "no waiter named")
_KINDS: dict[str, Callable[[Case], bool]] = {
    **{f"{name} ({dose})": (lambda c, n=name: c.kind == "fault" and c.level == n) for name, dose in DOSES.items()},
    "unequal ranks, loud": lambda c: c.kind == "uneven" and c.level == "loud",
    "unequal ranks, quiet": lambda c: c.kind == "uneven" and c.level == "quiet",
    "two culprits": lambda c: c.kind == "pair",
    "no own past": lambda c: c.kind == "blind",
    "bad delivery": lambda c: c.kind == "nuisance",
}


def _covered(rows: Rows) -> str:
    counts = Counter(c.kind for c, _ in rows)
    faults = len({c.what for c, _ in rows if c.kind == "fault"})
    layouts = ", ".join(dict.fromkeys(c.layout for c, _ in rows))
    return (
        f"{counts['fault']} of one fault ({faults} faults), {counts['uneven']} of one fault among unequal ranks, "
        f"{counts['pair']} of two culprits, {counts['nuisance']} of bad delivery, {counts['healthy']} healthy; layouts {layouts}"
    )


def _of(rows: Rows, rules: str, keep: Callable[[Case], bool] = lambda _: True) -> list[Score]:
    return [s for case, scores in rows if keep(case) for s in scores if s.rules == rules]


def _share(scores: Iterable[Score], which: Callable[[Score], bool] = lambda s: s.right) -> str:
    found = [which(s) for s in scores]
    return f"{100 * sum(found) / len(found):.1f} %" if found else "–"


def _figures(scores: list[Score]) -> list[str]:
    """Precision, recall, top-1 and waiters; precision is of all that claim something, healthy ones too."""
    faulty = [s for s in scores if s.of]
    claimed = [s for s in scores if s.confidence > 0]
    wanted, found = sum(s.of for s in faulty), sum(s.found for s in faulty)
    recall = f"{100 * found / wanted:.1f} %" if wanted else "–"
    return [_share(claimed), recall, _share(faulty), _share(faulty, lambda s: not s.waiter)]


def _overall(rows: Rows, rules: list[str]) -> list[list[str]]:
    out = []
    for r in rules:
        scores = _of(rows, r)
        healthy = [s for s in scores if not s.of]
        sure = [s for s in scores if s.confidence >= SURE]
        out.append(
            [r, *_figures(scores), f"{sum(s.accused for s in healthy)} of {len(healthy)}", f"{_share(sure)} of {len(sure)}"]
        )
    return out


def _by_kind(rows: Rows, rules: list[str]) -> list[list[str]]:
    out = []
    for name, keep in _KINDS.items():
        for r in rules:
            scores = _of(rows, r, keep)
            if scores:
                more = [_share(scores, lambda s: s.class_right), _share(scores, lambda s: s.confidence == 0)]
                out.append([name, r, str(len(scores)), *_figures(scores), *more])
    return out


def _delivery(rows: Rows, rules: list[str]) -> list[list[str]]:
    """The same cases, delivered well and badly."""
    badly = {(c.layout, c.what, c.level, c.number) for c, _ in rows if c.kind == "nuisance"}
    out = []
    for r in rules if badly else ():
        well = _of(rows, r, lambda c: c.kind == "fault" and (c.layout, c.what, c.level, c.number) in badly)
        bad = _of(rows, r, lambda c: c.kind == "nuisance")
        fall = sum(s.right for s in well) / max(len(well), 1) - sum(s.right for s in bad) / len(bad)
        waiters = _share(bad, lambda s: not s.waiter)
        out.append([r, str(len(bad)), _share(well), _share(bad), f"{100 * fall:.1f} points", waiters])
    return out


def _by_fault(rows: Rows, rules: list[str]) -> str:
    faults = list(dict.fromkeys(c.what for c, _ in rows if c.kind == "fault"))
    heads = ["fault", "cases", *(f"{r} {d}" for r in rules for d in DOSES)]
    body = []
    for fault in faults:
        cells = [
            _share(_of(rows, r, lambda c, d=d, f=fault: c.kind == "fault" and c.what == f and c.level == d))
            for r in rules
            for d in DOSES
        ]
        body.append([fault, str(sum(c.kind == "fault" and c.what == fault for c, _ in rows)), *cells])
    return _table("## Top-1 by fault", heads, body)


def _by_layout(rows: Rows, rules: list[str]) -> str:
    layouts = list(dict.fromkeys(c.layout for c, _ in rows))
    body = [[n, *(_share(_of(rows, r, lambda c, n=n: c.kind == "fault" and c.layout == n)) for r in rules)] for n in layouts]
    return _table("## Top-1 by layout", ["layout", *rules], body)


def _confusion(rows: Rows, rules: str) -> str:
    counts = Counter((s.truth, s.said) for s in _of(rows, rules, lambda c: c.kind == "fault"))
    said = sorted({s for _, s in counts})
    body = [[t, *(str(counts[t, s] or "") for s in said)] for t in sorted({t for t, _ in counts})]
    return _table(f"## Classes, `{rules}`: truth down, verdict across", ["", *said], body)


def _calibration(rows: Rows, rules: list[str]) -> str:
    body = []
    for low, high in BINS:
        cells = []
        for r in rules:
            mine = [s for s in _of(rows, r) if low <= s.confidence < high]
            cells.append(f"{_share(mine)} of {len(mine)}")
        body.append([f"{low:.1f}–{min(high, 1.0):.1f}", *cells])
    return _table("## Calibration: right, by what the verdict says of itself", ["confidence", *rules], body)


def _healthy(rows: Rows, rules: list[str]) -> str:
    kinds = list(dict.fromkeys((c.what, c.level) for c, _ in rows if c.kind == "healthy"))
    body = []
    for what, noise in kinds:
        mine = {r: _of(rows, r, lambda c, w=what, n=noise: c.kind == "healthy" and (c.what, c.level) == (w, n)) for r in rules}
        cells = [f"{sum(s.accused for s in m)} / {sum(s.confidence > 0 for s in m)}" for m in mine.values()]
        body.append([what, noise, str(len(next(iter(mine.values())))), *cells])
    return _table("## Healthy runs: machines accused / any cause claimed", ["what differs", "noise", "runs", *rules], body)


def _table(title: str, heads: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    if not body:
        return ""
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *(f"| {' | '.join(row)} |" for row in body)]
    return f"{title}\n\n" + "\n".join(lines) + "\n"


def svg(rows: Rows) -> str:
    """Top-1 by dose as bars, and calibration as lines against the diagonal."""
    rules = list(dict.fromkeys(s.rules for _, scores in rows for s in scores))
    body: list[str] = []
    for d, dose in enumerate(DOSES):
        for i, r in enumerate(rules):
            mine = _of(rows, r, lambda c, d=dose: c.kind == "fault" and c.level == d)
            share = sum(s.right for s in mine) / len(mine) if mine else 0.0
            x, h = 60 + d * 110 + i * 28, 200 * share
            body.append(f'<rect x="{x}" y="{240 - h:.1f}" width="24" height="{h:.1f}" fill="{COLOURS[r]}"/>')
            body.append(f'<text x="{x + 12}" y="{235 - h:.1f}" text-anchor="middle">{100 * share:.0f}</text>')
        body.append(f'<text x="{60 + d * 110 + 40}" y="258" text-anchor="middle">{dose} {DOSES[dose]}×</text>')
    body.append('<text x="50" y="24" font-weight="bold">right at first, % of cases</text>')
    body.append('<path d="M50 240H380M440 240H690M440 240V40" stroke="#444" fill="none"/>')
    body.append('<path d="M440 240L690 40" stroke="#bbb" stroke-dasharray="4 3" fill="none"/>')
    body.append('<text x="440" y="24" font-weight="bold">right, by confidence (0.5 to 1)</text>')
    for r in rules:
        points = []
        for low, high in BINS:
            mine = [s for s in _of(rows, r) if low <= s.confidence < high]
            if mine:
                mean = sum(s.confidence for s in mine) / len(mine)
                points.append((440 + 500 * (mean - 0.5), 240 - 400 * max(0.0, sum(s.right for s in mine) / len(mine) - 0.5)))
        if points:
            path = " ".join(f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(points))
            body.append(f'<path d="{path}" stroke="{COLOURS[r]}" stroke-width="2" fill="none"/>')
            body += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{COLOURS[r]}"/>' for x, y in points]
    for i, r in enumerate(rules):
        body.append(f'<rect x="{60 + i * 90}" y="272" width="12" height="12" fill="{COLOURS[r]}"/>')
        body.append(f'<text x="{78 + i * 90}" y="283">{escape(r)}</text>')
    style = 'font-family="sans-serif" font-size="12"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 300" {style}>\n' + "\n".join(body) + "\n</svg>\n"

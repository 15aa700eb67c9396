"""A search in words: a report for people, and the chosen point as a settings file."""

from __future__ import annotations

from collections.abc import Iterable

from eroica import __version__
from eroica.offline.tune import Tuning
from eroica.offline.tune_search import Outcome, Tried

SETTINGS_FILE, REPORT_FILE = "settings.toml", "report.md"


def settings_toml(tuning: Tuning) -> str:
    """The chosen point as ``--config`` reads it."""
    result = tuning.chosen.outcome()
    lines = [
        f"# Chosen by eroica tune {__version__}: recall {result.recall:.3f}, false accusations {result.false:.4f},",
        f"# on {len(tuning.cases)} labelled cases; other points of the front stand in {REPORT_FILE}.",
        "[localize]",
        f'rules = "{tuning.settings.rules}"',
        *(f"{name} = {value:g}" for name, value in tuning.chosen.point.items()),
    ]
    return "\n".join(lines) + "\n"


def report(tuning: Tuning) -> str:
    """Markdown: the front, the folds, and the cases that the chosen point gets wrong."""
    plan, start = tuning.plan, tuning.start
    faulty = sum(not case.label.healthy for case in tuning.cases)
    names = list(tuning.chosen.point)
    lines = [
        "# Thresholds of the localizer",
        "",
        f"{len(tuning.cases)} labelled cases of {len({case.job for case in tuning.cases})} jobs, {faulty} with a fault; "
        f"{len(tuning.tried)} points tried, seed {plan.seed}, eroica {__version__}.",
        "",
        "Recall: of the true causes, the share that is named. Right: of the faulty cases, those whose first cause is right.",
        "False: of all cases, those in which a machine is accused that is not at fault.",
        "",
        "## The front",
        "",
        "No point that was tried is better than one of these in recall and in false accusations. Which to take depends on",
        "what an accusation costs; the settings file holds the one marked →. Of points that do alike the nearest to the start is",
        "shown.",
        "",
        *_table(
            ["", *names, "recall", "right", "false", "points alike", f"stands without … of {len(tuning.folds)} folds"],
            [
                [
                    "→" * (one is tuning.chosen), *_values(one, names), *_figures(one.outcome()), str(_alike(tuning, one)),
                    str(stands),
                ]
                for one, stands in zip(tuning.front, tuning.in_folds, strict=True)
            ]
            + [["start", *_values(start, names), *_figures(start.outcome()), "", ""]],
        ),
        "",
        "Searched: " + ", ".join(f"{name} {r.low:g} to {r.high:g}" for name, r in tuning.space.ranges.items()) + ".",
        *([f"Without any effect on these cases, and left alone: {', '.join(tuning.idle)}."] if tuning.idle else []),
        "",
        "## What the choice is worth on jobs that it has not seen",
        "",
        f"For each fold the point is chosen in the same way without the fold's jobs (most recall at false accusations ≤ "
        f"{plan.max_false:g}, else fewest), and judged on them.",
        "",
        *_table(
            ["fold", "jobs", "cases", *names, "recall inside", "false inside", "recall outside", "false outside"],
            [
                [
                    str(number), _some(fold.jobs), str(fold.outside.faulty + fold.outside.healthy), *_values(fold.chosen, names),
                    *(f for one in (fold.inside, fold.outside) for f in (f"{one.recall:.3f}", f"{one.false:.4f}")),
                ]
                for number, fold in enumerate(tuning.folds, 1)
            ],
        ),
        "",
        "All folds together: recall {}, right {}, false {}.".format(*_figures(tuning.unseen)),
        "",
        "## Wrong at the chosen point",
        "",
    ]  # fmt: skip
    wrong = [
        [_cell(case.name), _cell(case.job), s.truth, s.said, f"{s.confidence:.2f}", "yes" if s.accused else ""]
        for case, s in zip(tuning.cases, tuning.chosen.scores, strict=True)
        if not s.right or s.waiter
    ]
    lines += _table(["case", "job", "truth", "said", "confidence", "a machine is accused"], wrong) if wrong else ["None."]
    return "\n".join(lines) + "\n"


def _alike(tuning: Tuning, point: Tried) -> int:
    """How many points that were tried do as well: one alone may owe it to chance."""
    return sum(one.outcome() == point.outcome() for one in tuning.tried)


def _values(one: Tried, names: Iterable[str]) -> list[str]:
    return [f"{one.point[name]:g}" for name in names]


def _figures(result: Outcome) -> list[str]:
    return [f"{result.recall:.3f}", f"{result.right:.3f}", f"{result.false:.4f}"]


def _some(names: list[str]) -> str:
    return _cell(", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else ""))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")[:200]


def _table(head: list[str], rows: Iterable[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]

"""Where the default thresholds come from: ``eroica tune`` over a simulated matrix of faint faults and healthy jobs.

    python bench/defaults.py                  # two layouts, minutes
    python bench/defaults.py --full           # all eight layouts

Each layout meets every fault at a dose of 5 % and is healthy at every noise, with and without a past: the cases of the accuracy
bench, with seeds of their own. It prints the front of recall against false accusations and where the defaults stand. They are
kept as long as no point that accuses as rarely finds over ``--slack`` more, and at least ``--cases`` more of them, since a few
are chance; else it ends with 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from accuracy_cases import LAYOUTS, QUICK_LAYOUTS, Case, cases

from eroica.offline.simulated import write_recording
from eroica.offline.tune import Plan, Tuning, tune
from eroica.offline.tune_cases import find_cases, read_cases
from eroica.schemas.settings import EroicaSettings
from eroica.simulator.messages import Emission
from eroica.simulator.problem import ScenarioError
from eroica.simulator.simulation import Simulation
from eroica.simulator.truth import labels

SEED = 1_000
"""Of the cases; those of docs/accuracy.md have others."""


def matrix(layouts: tuple[str, ...]) -> list[Case]:
    """Masked faults and healthy runs."""
    kept = [c for c in cases(layouts, 1, 2, SEED) if (c.kind, c.level) == ("fault", "masked") or c.kind == "healthy"]
    return [replace(c, assignments=(*c.assignments, f"job.name={c.layout}")) for c in kept]


def recorded(case: Case, directory: Path) -> None:
    """Play *case* into a recording."""
    simulation = Simulation(case.scenario())
    emission = Emission(simulation)
    truth = labels(simulation, emission.request.request)
    write_recording(emission.all(), directory, job=case.layout, labels=truth, settings=EroicaSettings())


def table(tuning: Tuning) -> str:
    """The front, and the point that the search started from."""
    lines = ["| | outlier_z | min_effect | accuse_confidence | recall | false |", "|---|---|---|---|---|---|"]
    for name, tried in [("defaults", tuning.start), *(("front", one) for one in tuning.front)]:
        found, point = tried.outcome(), tried.point
        values = f"{point['outlier_z']:.2f} | {point['min_effect']:.3f} | {point['accuse_confidence']:.2f}"
        lines.append(f"| {name} | {values} | {found.recall:.1%} | {found.false:.2%} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="all layouts")
    parser.add_argument("--points", type=int, default=24, help="points that the search tries")
    parser.add_argument("--slack", type=float, default=0.02, help="recall by which a point must do better to become the default")
    parser.add_argument("--cases", type=int, default=6, help="and so many faults more: fewer are found by chance")
    options = parser.parse_args()
    wanted = matrix(tuple(LAYOUTS) if options.full else QUICK_LAYOUTS[:2])
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(wanted):
            try:
                recorded(case, Path(folder) / f"{number:04d}")
            except ScenarioError as error:  # the layout has no such link or stage
                print(f"left out: {case.name}: {error}", file=sys.stderr)
        read = read_cases(find_cases([Path(folder)], {}, Path(folder)), EroicaSettings())
    tuning = tune(read, EroicaSettings().localize, Plan(points=options.points))
    start = tuning.start.outcome()
    better = [one for one in tuning.front if one.outcome().false <= start.false and one.outcome().recall > start.recall]
    gain = max((one.outcome().recall - start.recall for one in better), default=0.0)
    print(f"{len(read)} cases ({start.faulty} faulty, {start.healthy} healthy), {len(tuning.tried)} points, seed {SEED}\n")
    print(table(tuning))
    kept = gain <= options.slack or round(gain * start.faulty) < options.cases
    print(f"\na point that accuses as rarely finds {gain:.1%} more: the defaults are {'kept' if kept else 'to be changed'}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())

"""How often verdicts are right: simulated jobs broken in known ways, judged by each rule set on the same cases.

    python bench/accuracy.py                    # the small form: four layouts, some hundred cases, minutes
    python bench/accuracy.py --full             # all layouts, --seeds of each case, on all processors
    python bench/accuracy.py --layout tp-pp-64 --fault nic_down --rules eroica --wrong --profile

Each case runs through the simulator, the grouping and the localizer as they are, without a broker. ``--write`` renews the page
and the plot in docs/.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from accuracy_cases import LAYOUTS, QUICK_LAYOUTS, Case, cases
from accuracy_report import report, svg
from accuracy_score import Score, score
from accuracy_stages import Stopwatch, stage_table

from eroica.localizer.core import LocalizerCore
from eroica.schemas.errors import EroicaError
from eroica.schemas.groups import GroupChunk
from eroica.schemas.outputs import InputRef, Output
from eroica.schemas.settings import GroupSettings, LocalizeSettings
from eroica.schemas.verdicts import Verdict
from eroica.simulator.engine import Engine
from eroica.simulator.messages import Emission
from eroica.simulator.problem import ScenarioError
from eroica.simulator.simulation import Simulation
from eroica.simulator.truth import labels
from eroica.simulator.workload import build_workload
from eroica.streams.collect import GroupCore

RULES = ("eroica", "paper", "guide")
DOCS = Path(__file__).resolve().parent.parent / "docs"


@dataclass(frozen=True)
class Result:
    """What became of one case."""

    case: Case
    scores: list[Score]
    """One a rule set."""
    headlines: list[str]
    seconds: dict[str, float]
    """By stage."""


def judge(case: Case, rules: Sequence[str]) -> Result | None:
    """Run one case; ``None`` if the fault cannot exist in the layout."""
    scenario, watch = case.scenario(), Stopwatch()
    try:
        with watch.stage("lay out, place faults"):
            simulation = Simulation(scenario, engine=_engine(case.layout, repr((scenario.job, scenario.cluster))))
    except ScenarioError:
        return None
    with watch.stage("run, write messages"):
        emission = Emission(simulation)
        request = emission.request.request
        answers = [o for o in emission.all() if o.topic == "summaries"]
    with watch.stage("truth"):
        truth = labels(simulation, request)
    with watch.stage("group"):
        chunks = list(_chunks(answers))
    verdicts = []
    for name in rules:
        with watch.stage(f"localize by {name}"):
            verdicts.append(_verdict(chunks, name, request))
    return Result(case, [score(v, truth) for v in verdicts], [v.headline for v in verdicts], watch.seconds)


@lru_cache(maxsize=8)
def _engine(layout: str, shape: str) -> Engine:
    """The engine of a layout's job; *shape* is its job and cluster as text, so that equal ones share it."""
    return Engine(build_workload(_SCENARIOS[shape]))


_SCENARIOS: dict[str, object] = {}


def _chunks(answers: Iterable[Output]) -> Iterator[GroupChunk]:
    core = GroupCore(GroupSettings())
    for offset, output in enumerate(answers):
        for made in core.feed(output.message, InputRef("summaries", 0, offset)):
            yield made.message


def _verdict(chunks: Sequence[GroupChunk], rules: str, request: str) -> Verdict:
    core = LocalizerCore(LocalizeSettings(rules=rules))
    for offset, chunk in enumerate(chunks):
        for output in core.feed(chunk, InputRef("groups", 0, offset)):
            if isinstance(output.message, Verdict) and output.message.request.id == request:
                return output.message
    raise EroicaError("the groups led to no verdict", where=request)


def _safely(job: tuple[Case, tuple[str, ...]]) -> Result | None:
    case, rules = job
    scenario = case.scenario()
    _SCENARIOS[repr((scenario.job, scenario.cluster))] = scenario
    try:
        return judge(case, rules)
    except Exception as error:
        raise RuntimeError(f"{case.name} (seed {case.seed}): {error}") from error


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="all layouts, and the numbers of seeds below")
    parser.add_argument("--quick", action="store_true", help="the small form, which is the default")
    parser.add_argument("--seeds", type=int, default=4, help="with --full: runs of each fault, dose and layout")
    parser.add_argument("--healthy-seeds", type=int, default=40, help="with --full: of each healthy variant, noise and layout")
    parser.add_argument("--seed", type=int, default=1, help="all others follow from it; tune with some, publish with others")
    parser.add_argument("--layout", action="append", choices=tuple(LAYOUTS))
    parser.add_argument("--fault", action="append", help="only these faults (or 'healthy', 'pair')")
    parser.add_argument("--rules", action="append", choices=RULES)
    parser.add_argument("--jobs", type=int, help="processes (default 1; with --full one a processor)")
    parser.add_argument("--wrong", action="store_true", help="print the cases that the first rule set gets wrong")
    parser.add_argument("--profile", action="store_true", help="print which stage of the run takes the time")
    parser.add_argument("--json", type=Path, help="every score, one line each")
    parser.add_argument("--write", action="store_true", help="docs/accuracy.md and its plot")
    options = parser.parse_args()
    layouts = tuple(options.layout or (LAYOUTS if options.full else QUICK_LAYOUTS))
    seeds, healthy = (options.seeds, options.healthy_seeds) if options.full else (1, 4)
    rules = tuple(options.rules or RULES)
    jobs = options.jobs or ((os.cpu_count() or 1) if options.full else 1)
    wanted = [c for c in cases(layouts, seeds, healthy, options.seed) if _chosen(c, options.fault)]
    began, results, skipped = time.monotonic(), [], 0
    for number, result in enumerate(_all(wanted, rules, jobs), 1):
        if result is None:
            skipped += 1
        else:
            results.append(result)
            first = result.scores[0]
            if options.wrong and not first.right:
                print(f"{result.case.name} seed {result.case.seed}: {first.truth} → {first.said}: {result.headlines[0]}")
        if sys.stderr.isatty():
            print(f"\r{number}/{len(wanted)}", end="", file=sys.stderr)
    took = time.monotonic() - began
    title = (
        f"seed {options.seed}, {len(results)} cases ({skipped} left out: the layout has no such link or stage), "
        f"{took:.0f} s in {jobs} process{'es' if jobs > 1 else ''}"
    )
    rows = [(r.case, r.scores) for r in results]
    text = report(rows, title)
    print(text)
    if options.profile:
        print(stage_table([r.seconds for r in results]))
    if options.json:
        lines = [json.dumps({"case": r.case.name, "seed": r.case.seed, **asdict(s)}) for r in results for s in r.scores]
        options.json.write_text("\n".join(lines) + "\n")
    if options.write:
        (DOCS / "img").mkdir(exist_ok=True)
        (DOCS / "img" / "accuracy.svg").write_text(svg(rows))
        (DOCS / "accuracy.md").write_text(text)
    return 0


def _chosen(case: Case, faults: list[str] | None) -> bool:
    return not faults or case.what in faults or case.kind in faults


def _all(wanted: list[Case], rules: tuple[str, ...], jobs: int) -> Iterator[Result | None]:
    if jobs <= 1:
        yield from (_safely((case, rules)) for case in wanted)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(_safely, [(case, rules) for case in wanted], chunksize=8)


if __name__ == "__main__":
    sys.exit(main())

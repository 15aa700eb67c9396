"""The simulator's ``production`` noise against published timelines of production jobs.

Relative deviation of each operation from the median of its worker and kind, waiting taken off: percentiles of its logarithm, and
how many are far out, in the timelines of StragglerAnalysis (../shared/data) and in a simulated job. Where the data is absent it
says so.

    python bench/noise_fit.py
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from needs import DATA, existing

from eroica.simulator.effects import Effects
from eroica.simulator.engine import Engine
from eroica.simulator.noise import noise_of
from eroica.simulator.source import parse_scenario
from eroica.simulator.workload import build_workload
from eroica.topology.stepgraph import Op
from eroica.topology.straggler_analysis import read_timeline

KINDS: Mapping[str, tuple[str, ...]] = {
    "compute": ("forward-compute", "backward-compute"),
    "optimizer": ("optimizer",),
    "transfer of 0.5-1.2 ms": ("forward-recv", "backward-recv", "forward-send", "backward-send"),
    "transfer of 25-220 ms": ("params-all-gather", "grads-reduce-scatter"),
}
POINTS = (1, 10, 25, 75, 90, 99)
TRANSFERS = (
    *("forward-recv", "backward-recv", "forward-send", "backward-send", "params-all-gather", "grads-reduce-scatter"),
    *("layernorm-grads-all-reduce", "embedding-grads-all-reduce", "grads-all-reduce", "optimizer-clip-main-grad"),
)
TAILS = (1.2, 1.5, 2.0, 5.0)
LIKE_THEM = (
    "job: {world: 8, framework: megatron, sizes: {pp: 2}, micro_batches: 8, sharding: 1, buckets: 1, "
    "model: {layer_ms: 15, parameter_mb: 1500, activation_mb: 40}}\ncluster: {gpus_per_host: 1}\nprofile: {steps: 30}"
)


Table = tuple[npt.NDArray[np.float64], tuple[Op, ...]]
"""Times of shape (ops, lanes, steps), and the operations."""


def deviations(table: Table, kinds: tuple[str, ...]) -> npt.NDArray[np.float64]:
    """log(time / median) within each kind, stage, model chunk and lane."""
    times, ops = table
    out = []
    for key in sorted({(o.kind, o.stage, o.chunk) for o in ops if o.kind in kinds}):
        mine = [i for i, o in enumerate(ops) if (o.kind, o.stage, o.chunk) == key]
        logs = np.log(np.maximum(times[mine], 1e-12))
        out.append((logs - np.median(logs, axis=(0, 2), keepdims=True)).ravel())
    return np.concatenate(out)


def main() -> int:
    tables: dict[str, Table] = {}
    for job in ("AR", "ST"):
        timeline = read_timeline(existing(DATA / "straggler_analysis" / f"trace-{job}.parquet"))
        tables[job] = timeline.transfer_s, timeline.graph.ops
    scenario = parse_scenario(LIKE_THEM)
    engine = Engine(build_workload(scenario))
    run = engine.run(Effects(engine.work.world, scenario.profile.steps), noise_of("production"), 1)
    tables["simulated"] = run.own.astype(np.float64), engine.work.step.graph.ops
    print(f"| operations | job | count | {' | '.join(f'p{p}' for p in POINTS)} |")
    print(f"|{'---|' * (len(POINTS) + 3)}")
    for name, kinds in KINDS.items():
        for job, table in tables.items():
            found = deviations(table, kinds)
            cells = " | ".join(f"{100 * v:+.1f} %" for v in np.percentile(found, POINTS))
            print(f"| {name} | {job} | {found.size} | {cells} |")
    print()
    print(f"| all of | job | count | {' | '.join(f'above {t:g}×' for t in TAILS)} | longest |")
    print(f"|{'---|' * (len(TAILS) + 4)}")
    for name, kinds in (("compute", KINDS["compute"]), ("transfers", TRANSFERS)):
        for job, table in tables.items():
            found = np.exp(deviations(table, kinds))
            cells = " | ".join(f"{100 * (found > t).mean():.3f} %" for t in TAILS)
            print(f"| {name} | {job} | {found.size} | {cells} | {found.max():.1f}× |")
    return 0


if __name__ == "__main__":
    sys.exit(main())

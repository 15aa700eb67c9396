"""Layouts of known frameworks from their parallel sizes. Closed forms, checked against the frameworks' own generators.

Every preset divides the world itself and refuses sizes that do not fit, naming the division that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from eroica.schemas.errors import TopologyError, UsageError
from eroica.schemas.ranks import MAX_RANK, RankArray
from eroica.schemas.wording import did_you_mean
from eroica.topology.grid import Grid
from eroica.topology.layout import CoordinateTable, Kind, RankLayout

__all__ = [
    "FRAMEWORKS",
    "build_layout",
    "custom",
    "deepspeed",
    "deepspeed_moe",
    "folded",
    "megatron",
    "replicated",
    "torchtitan",
]

MEGATRON_ORDER = "tp-cp-ep-dp-pp"
EXPERT_AXES = ("ep", "edp", "etp", "efsdp")


def _divide(world: int, factors: Mapping[str, int], what: str) -> int:
    product = 1
    for name, size in factors.items():
        if size < 1:
            raise TopologyError(f"size {size} of {name!r} is below one", do="give every parallel dimension at least 1")
        product *= size
    if world < 1 or world > MAX_RANK + 1:
        raise TopologyError(f"a world of {world} ranks is impossible", do=f"give a world size of 1..{MAX_RANK + 1}")
    if world % product:
        text = " × ".join(f"{n} {s}" for n, s in factors.items() if s > 1)
        raise TopologyError(f"a world of {world} ranks cannot be divided by {text} to give {what}", do="check the sizes")
    return world // product


def _expect(name: str, told: int | None, found: int) -> int:
    if told is not None and told != found:
        raise TopologyError(
            f"{name} is given as {told}, but the other sizes leave {found}", do=f"leave {name} out, or correct it"
        )
    return found


def megatron(
    world: int,
    *,
    tp: int = 1,
    pp: int = 1,
    cp: int = 1,
    ep: int = 1,
    etp: int | None = None,
    dp: int | None = None,
    edp: int | None = None,
    vpp: int = 1,
    order: str = MEGATRON_ORDER,
) -> RankLayout:
    """Megatron-LM: a dense grid (tp, cp, dp, pp) and an expert grid (etp, ep, edp, pp) over the same ranks, the first
    of *order* fastest.

    ``etp`` defaults to ``tp``; the expert grid has no cp. ``--use-tp-pp-dp-mapping`` is the order ``tp-cp-ep-pp-dp``.

    :raises TopologyError: if the sizes do not divide the world, or *order* names an unknown axis, one twice, or not one that
        has a size.
    """
    etp = tp if etp is None else etp
    dp = _expect("dp", dp, _divide(world, {"tp": tp, "pp": pp, "cp": cp}, "a data-parallel size"))
    edp = _expect("edp", edp, _divide(world, {"etp": etp, "ep": ep, "pp": pp}, "an expert-data-parallel size"))
    names = order.lower().split("-")
    if len(set(names)) != len(names) or not set(names) <= {"tp", "cp", "ep", "dp", "pp"}:
        raise TopologyError(f"order {order!r} is not a permutation of tp, cp, ep, dp, pp", do=f"write e.g. {MEGATRON_ORDER}")
    dense = {"tp": tp, "cp": cp, "dp": dp, "pp": pp}
    expert = {"tp": ("etp", etp), "ep": ("ep", ep), "dp": ("edp", edp), "pp": ("pp", pp)}
    for name in (n for n in MEGATRON_ORDER.split("-") if n not in names):
        size = max(dense.get(name, 1), expert[name][1] if name in expert else 1)
        if size > 1:
            raise TopologyError(f"order {order!r} leaves out {name}, whose size is {size}", do=f"write e.g. {MEGATRON_ORDER}")
        names.append(name)
    slow_first = names[::-1]
    return RankLayout(
        framework="megatron",
        grids={
            "dense": Grid.nested({n: dense[n] for n in slow_first if n in dense}),
            "expert": Grid.nested({expert[n][0]: expert[n][1] for n in slow_first if n in expert}),
        },
        kinds={
            "dense.tp": Kind("dense", ("tp",)),
            "dense.cp": Kind("dense", ("cp",)),
            "dense.dp": Kind("dense", ("dp",)),
            "dense.dp-cp": Kind("dense", ("dp", "cp")),
            "dense.pp": Kind("dense", ("pp",)),
            "dense.tp-cp": Kind("dense", ("tp", "cp")),
            "expert.etp": Kind("expert", ("etp",)),
            "expert.ep": Kind("expert", ("ep",)),
            "expert.edp": Kind("expert", ("edp",)),
            "expert.pp": Kind("expert", ("pp",)),
            "expert.tp-ep": Kind("expert", ("etp", "ep")),
        },
        sizes={"tp": tp, "pp": pp, "cp": cp, "ep": ep, "dp": dp, "edp": edp, "etp": etp},
        order=order,
        stages_per_rank=vpp,
    )


def torchtitan(
    world: int,
    *,
    pp: int = 1,
    dp_replicate: int = 1,
    dp_shard: int | None = None,
    cp: int = 1,
    tp: int = 1,
    ep: int = 1,
    etp: int = 1,
    vpp: int = 1,
) -> RankLayout:
    """torchtitan's device mesh, last axis fastest: (pp, dp_replicate, dp_shard, cp, tp), and for experts (pp,
    dp_replicate, efsdp, ep[, etp]).

    ``dp_shard`` of ``None`` or -1 takes what the others leave.

    :raises TopologyError: if the sizes do not give the world.
    """
    told = None if dp_shard in (None, -1) else dp_shard
    rest = _divide(world, {"pp": pp, "dp_replicate": dp_replicate, "cp": cp, "tp": tp}, "a dp_shard size")
    shard = _expect("dp_shard", told, rest)
    efsdp = _divide(shard * cp * tp, {"ep": ep, "etp": etp}, "an efsdp size")
    sparse = {"pp": pp, "dp_replicate": dp_replicate, "efsdp": efsdp, "ep": ep}
    kinds = {f"dense.{a}": Kind("dense", (a,)) for a in ("pp", "dp_replicate", "dp_shard", "cp", "tp")}
    kinds["dense.fsdp"] = Kind("dense", ("dp_shard", "cp"))
    kinds["sparse.efsdp"] = Kind("sparse", ("efsdp",))
    kinds["sparse.ep"] = Kind("sparse", ("ep",))
    if etp > 1:
        sparse["etp"] = etp
        kinds["sparse.etp"] = Kind("sparse", ("etp",))
    dense = {"pp": pp, "dp_replicate": dp_replicate, "dp_shard": shard, "cp": cp, "tp": tp}
    return RankLayout(
        framework="torchtitan",
        grids={"dense": Grid.nested(dense), "sparse": Grid.nested(sparse)},
        kinds=kinds,
        sizes={**dense, "ep": ep},
        stages_per_rank=vpp,
    )


def deepspeed_moe(
    world: int, *, tp: int = 1, ep: int = 1, pp: int = 1, vpp: int = 1, use_data_before_expert: bool = False
) -> RankLayout:
    """DeepSpeed's expert groups: inside each data-parallel group, consecutive members form an expert group.

    With *use_data_before_expert* the expert-data groups are consecutive instead.

    :raises TopologyError: if the sizes do not divide the world.
    """
    edp = _divide(world, {"tp": tp, "pp": pp, "ep": ep}, "an expert-data-parallel size")
    inner = {"ep": ep, "edp": edp, "tp": tp} if use_data_before_expert else {"edp": edp, "ep": ep, "tp": tp}
    return RankLayout(
        framework="deepspeed-moe",
        grids={"expert": Grid.nested({"pp": pp, **inner}, listed=("pp", "tp", "edp", "ep"))},
        kinds={"ep": Kind("expert", ("ep",)), "edp": Kind("expert", ("edp",))},
        sizes={"tp": tp, "ep": ep, "pp": pp},
        stages_per_rank=vpp,
    )


def deepspeed(
    world: int,
    *,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    dp: int | None = None,
    vpp: int = 1,
    use_data_before_expert: bool = False,
) -> RankLayout:
    """DeepSpeed's pipe-data-model topology, model fastest, with its expert groups where ``ep`` > 1.

    :raises TopologyError: if the sizes do not divide the world.
    """
    dp = _expect("dp", dp, _divide(world, {"tp": tp, "pp": pp}, "a data-parallel size"))
    grids: dict[str, Grid | CoordinateTable] = {"dense": Grid.nested({"pp": pp, "dp": dp, "tp": tp})}
    kinds = {"pipe": Kind("dense", ("pp",)), "data": Kind("dense", ("dp",)), "model": Kind("dense", ("tp",))}
    if ep > 1:
        moe = deepspeed_moe(world, tp=tp, ep=ep, pp=pp, use_data_before_expert=use_data_before_expert)
        grids.update(moe.grids)
        kinds.update(moe.kinds)
    return RankLayout("deepspeed", grids, kinds, {"tp": tp, "pp": pp, "dp": dp, "ep": ep}, stages_per_rank=vpp)


def replicated(world: int, *, framework: str = "ddp", dp_replicate: int = 1, dp_shard: int | None = None) -> RankLayout:
    """Plain data parallelism: ``ddp`` (one group of replicas), ``fsdp`` (one group of shards), ``hsdp`` (replicas of
    shard groups).

    :raises TopologyError: if the sizes do not give the world.
    """
    if framework == "hsdp":
        told = None if dp_shard in (None, -1) else dp_shard
        shard = _expect("dp_shard", told, _divide(world, {"dp_replicate": dp_replicate}, "a dp_shard size"))
        sizes = {"dp_replicate": dp_replicate, "dp_shard": shard}
    else:
        axis = "dp" if framework == "ddp" else "dp_shard"
        sizes = {axis: _divide(world, {}, axis)}
    return RankLayout(framework, {"dense": Grid.nested(sizes)}, {a: Kind("dense", (a,)) for a in sizes}, sizes)


def custom(coordinates: Mapping[str, RankArray], *, vpp: int = 1) -> RankLayout:
    """A layout of explicit coordinates: axis → array of shape (world,).

    Expert axes (ep, edp, etp, efsdp) form a grid of their own beside the others. It shares ``pp`` with them, and
    ``dp_replicate`` and ``tp`` as far as a place of its own for each rank needs.

    :raises TopologyError: for no axis, unequal lengths, a negative coordinate, or two ranks at one place.
    """
    if not coordinates:
        raise TopologyError("no coordinates are given", do="give each rank at least one coordinate")
    table = {axis: np.asarray(values, dtype=np.int64) for axis, values in coordinates.items()}
    worlds = {values.size for values in table.values()}
    if len(worlds) != 1:
        raise TopologyError("the axes have different numbers of ranks", do="give every rank every coordinate")
    if worlds == {0}:
        raise TopologyError("the axes place no rank", do="give every rank every coordinate")
    dense = {a: v for a, v in table.items() if a not in EXPERT_AXES}
    expert = {a: v for a, v in table.items() if a in EXPERT_AXES}
    grids: dict[str, Grid | CoordinateTable] = {}
    kinds: dict[str, Kind] = {}
    if dense:
        _one_place_each(dense)
        grids["dense"] = CoordinateTable(dense)
        kinds.update({a: Kind("dense", (a,)) for a in dense})
    if expert:
        grids["expert"] = CoordinateTable(_expert_table(dense, expert))
        kinds.update({a: Kind("expert", (a,)) for a in expert})
    sizes = {a: int(v.max(initial=-1)) + 1 for a, v in table.items()}
    return RankLayout("custom", grids, kinds, sizes, stages_per_rank=vpp)


def _expert_table(dense: Mapping[str, RankArray], expert: Mapping[str, RankArray]) -> dict[str, RankArray]:
    shared = [a for a in ("pp", "dp_replicate", "tp") if a in dense]
    for count in range(len(shared) + 1):
        table = {**{a: dense[a] for a in shared[:count]}, **expert}
        if ("pp" in table or "pp" not in dense) and _shared_place(table) is None:
            return table
    _one_place_each(table)
    return table


def _shared_place(table: Mapping[str, RankArray]) -> tuple[int, int] | None:
    """Two ranks at one place, or none."""
    stacked = np.stack(list(table.values()))
    order = np.lexsort(stacked[::-1])
    same = np.flatnonzero((np.diff(stacked[:, order], axis=1) == 0).all(axis=0))
    if same.size == 0:
        return None
    first, second = sorted((int(order[same[0]]), int(order[same[0] + 1])))
    return first, second


def _one_place_each(table: Mapping[str, RankArray]) -> None:
    stacked = np.stack(list(table.values()))
    if stacked.size and stacked.min() < 0:
        rank = int(np.flatnonzero((stacked < 0).any(axis=0))[0])
        raise TopologyError(f"rank {rank} has a negative coordinate")
    pair = _shared_place(table)
    if pair is not None:
        place = ", ".join(f"{axis} {int(values[pair[0]])}" for axis, values in table.items())
        raise TopologyError(f"ranks {pair[0]} and {pair[1]} are both at {place}", do="give each rank a place of its own")


def _plain(framework: str) -> Callable[..., RankLayout]:
    def build(world: int, **sizes: Any) -> RankLayout:
        return replicated(world, framework=framework, **sizes)

    return build


FRAMEWORKS: Mapping[str, tuple[Callable[..., RankLayout], frozenset[str]]] = {
    "megatron": (megatron, frozenset({"tp", "pp", "cp", "ep", "etp", "dp", "edp", "vpp", "order"})),
    "torchtitan": (torchtitan, frozenset({"pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "etp", "vpp"})),
    "deepspeed": (deepspeed, frozenset({"tp", "pp", "ep", "dp", "vpp", "use_data_before_expert"})),
    "deepspeed-moe": (deepspeed_moe, frozenset({"tp", "pp", "ep", "vpp", "use_data_before_expert"})),
    "ddp": (_plain("ddp"), frozenset()),
    "fsdp": (_plain("fsdp"), frozenset()),
    "hsdp": (_plain("hsdp"), frozenset({"dp_replicate", "dp_shard"})),
}
"""Framework → its builder and the options it takes."""


def build_layout(framework: str, world: int, options: Mapping[str, int | str | bool]) -> RankLayout:
    """The layout of *framework* for *world* ranks; *options* are sizes by name, and ``order``, ``use_data_before_expert`` or
    ``placement``.

    A size of 1 for a dimension that the framework lacks says nothing and is accepted. ``placement`` ``v`` holds two stages a
    rank, folded back (ZBV, DualPipeV).

    :raises UsageError: for an unknown framework, or an option that it does not have.
    :raises TopologyError: if the sizes are impossible.
    """
    if framework not in FRAMEWORKS:
        do = f"{did_you_mean(framework, FRAMEWORKS)}use one of {', '.join(FRAMEWORKS)}, or custom with its coordinates"
        raise UsageError(f"{framework!r} is not a known framework", do=do)
    build, known = FRAMEWORKS[framework]
    placement = options.get("placement", "loop")
    for name, value in options.items():
        if name not in known and value != 1 and not (name == "placement" and "vpp" in known):
            own = f"its options are {', '.join(sorted(known))}" if known else "leave it out: it takes none but the world size"
            raise UsageError(f"{framework} has no option {name!r}", do=did_you_mean(name, known) + own)
    layout = build(world, **{name: value for name, value in options.items() if name in known})
    return layout if placement == "loop" else folded(layout, str(placement), "vpp" in options)


def folded(layout: RankLayout, placement: str, counted: bool) -> RankLayout:
    """*layout* with its stages placed so; a V holds two a rank where their number was not *counted* otherwise.

    :raises TopologyError: for an unknown placement, or a V of another number of stages a rank.
    """
    chunks = layout.stages_per_rank if counted or placement != "v" else 2
    return replace(layout, placement=placement, stages_per_rank=chunks)

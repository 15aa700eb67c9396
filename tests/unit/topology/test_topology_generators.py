"""Layouts against plain enumerations that follow the frameworks' own algorithms and share nothing with ours."""

from __future__ import annotations

from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eroica.topology import build_layout

pytestmark = pytest.mark.unit

Members = list[list[int]]
SIZES = st.sampled_from([1, 2, 3, 4])


def mixed_radix(order: list[str], sizes: dict[str, int], wanted: set[str]) -> Members:
    """Megatron's groups: rank = sum of coordinate × stride, the first axis of the order fastest, in groups and among them."""
    groups: dict[int, list[int]] = {}
    world = int(np.prod([sizes[a] for a in order]))
    for rank in range(world):
        rest, number, place, number_stride, place_stride = rank, 0, 0, 1, 1
        for axis in order:
            rest, digit = divmod(rest, sizes[axis])
            if axis in wanted:
                place += digit * place_stride
                place_stride *= sizes[axis]
            else:
                number += digit * number_stride
                number_stride *= sizes[axis]
        groups.setdefault(number, [-1] * int(np.prod([sizes[a] for a in wanted])))[place] = rank
    return [groups[number] for number in sorted(groups)]


MEGATRON_KINDS = {
    "dense.tp": ("dense", {"tp"}),
    "dense.cp": ("dense", {"cp"}),
    "dense.dp": ("dense", {"dp"}),
    "dense.dp-cp": ("dense", {"dp", "cp"}),
    "dense.pp": ("dense", {"pp"}),
    "dense.tp-cp": ("dense", {"tp", "cp"}),
    "expert.etp": ("expert", {"tp"}),
    "expert.ep": ("expert", {"ep"}),
    "expert.edp": ("expert", {"dp"}),
    "expert.pp": ("expert", {"pp"}),
    "expert.tp-ep": ("expert", {"tp", "ep"}),
}


@given(
    st.permutations(["tp", "cp", "ep", "dp", "pp"]),
    SIZES,
    SIZES,
    st.sampled_from([1, 2]),
    SIZES,
    st.booleans(),
    st.integers(1, 3),
)
@settings(max_examples=120)
def test_megatron_in_any_order(order: list[str], tp: int, pp: int, cp: int, ep: int, own_etp: bool, rest: int) -> None:
    world, etp = tp * pp * cp * ep * rest, 1 if own_etp else tp
    layout = build_layout(
        "megatron", world, {"tp": tp, "pp": pp, "cp": cp, "ep": ep, "etp": etp, "order": "-".join(order), "vpp": 2}
    )
    dense = {"tp": tp, "cp": cp, "ep": 1, "dp": world // (tp * cp * pp), "pp": pp}
    expert = {"tp": etp, "cp": 1, "ep": ep, "dp": world // (etp * ep * pp), "pp": pp}
    assert set(layout.kinds) == set(MEGATRON_KINDS)
    for kind, (grid, axes) in MEGATRON_KINDS.items():
        assert layout.groups(kind).tolist() == mixed_radix(order, dense if grid == "dense" else expert, axes), kind


@pytest.mark.parametrize("order", ["-".join(p) for p in permutations(["tp", "dp", "pp"])])
def test_megatron_orders_without_the_axes_that_are_not_used(order: str) -> None:
    layout = build_layout("megatron", 24, {"tp": 2, "pp": 3, "order": order})
    sizes = {"tp": 2, "dp": 4, "pp": 3}
    for axis in sizes:
        assert layout.groups(f"dense.{axis}").tolist() == mixed_radix(order.split("-"), sizes, {axis})


def along(mesh: np.ndarray[Any, Any], axes: tuple[int, ...]) -> Members:
    """Groups of a device mesh along some dimensions, which come last and keep their order."""
    rest = [i for i in range(mesh.ndim) if i not in axes]
    size = int(np.prod([mesh.shape[i] for i in axes]))
    out: Members = mesh.transpose(*rest, *axes).reshape(-1, size).tolist()
    return out


@given(SIZES, SIZES, SIZES, st.sampled_from([1, 2]), SIZES, st.data())
@settings(max_examples=120)
def test_torchtitan_meshes_with_replicas_and_experts(pp: int, dpr: int, dps: int, cp: int, tp: int, data: st.DataObject) -> None:
    inner = dps * cp * tp
    ep = data.draw(st.sampled_from([d for d in range(1, inner + 1) if inner % d == 0]))
    world = pp * dpr * inner
    layout = build_layout("torchtitan", world, {"pp": pp, "dp_replicate": dpr, "dp_shard": dps, "cp": cp, "tp": tp, "ep": ep})
    dense = np.arange(world).reshape(pp, dpr, dps, cp, tp)
    sparse = np.arange(world).reshape(pp, dpr, inner // ep, ep)
    wanted = {f"dense.{n}": along(dense, (i,)) for i, n in enumerate(("pp", "dp_replicate", "dp_shard", "cp", "tp"))}
    wanted |= {"dense.fsdp": along(dense, (2, 3)), "sparse.efsdp": along(sparse, (2,)), "sparse.ep": along(sparse, (3,))}
    assert {kind: layout.groups(kind).tolist() for kind in layout.kinds} == wanted


@given(SIZES, SIZES, st.integers(1, 4), st.sampled_from([1, 2, 4]), st.booleans())
@settings(max_examples=120)
def test_deepspeed_pipe_data_model_and_experts(pp: int, tp: int, rest: int, ep: int, data_first: bool) -> None:
    dp = rest * ep
    world = pp * dp * tp
    number = {place: r for r, place in enumerate(product(range(pp), range(dp), range(tp)))}
    pipe = [[number[p, d, m] for p in range(pp)] for d in range(dp) for m in range(tp)]
    data = [[number[p, d, m] for d in range(dp)] for p in range(pp) for m in range(tp)]
    model = [[number[p, d, m] for m in range(tp)] for p in range(pp) for d in range(dp)]
    experts: Members = []
    expert_data: Members = []
    for ranks in data:
        # Members of a data group as the framework lines them up: as they are, or every (dp / ep)-th first.
        line = [r for start in range(dp // ep) for r in ranks[start :: dp // ep]] if data_first else ranks
        parts = [line[i : i + ep] for i in range(0, dp, ep)]
        experts += parts
        expert_data += [list(column) for column in zip(*parts, strict=True)]
    options = {"pp": pp, "tp": tp, "ep": ep, "use_data_before_expert": data_first}
    moe = build_layout("deepspeed-moe", world, options)
    assert {kind: moe.groups(kind).tolist() for kind in moe.kinds} == {"ep": experts, "edp": expert_data}
    whole = build_layout("deepspeed", world, options)
    found = {kind: whole.groups(kind).tolist() for kind in whole.kinds}
    wanted = {"pipe": pipe, "data": data, "model": model}
    assert found == (wanted | {"ep": experts, "edp": expert_data} if ep > 1 else wanted)


def test_hsdp_is_replicas_of_shard_groups() -> None:
    layout = build_layout("hsdp", 12, {"dp_replicate": 3})
    assert layout.groups("dp_shard").tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert layout.groups("dp_replicate").tolist() == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]
